"""A Flink environment: embedded in this process's JVM, or a client of a running cluster."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyflink
from py4j.protocol import Py4JJavaError
from pyflink import java_gateway
from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from forebay.clients.s3.location import Location, uri_of
from forebay.errors import SettingError
from forebay.flink.job import java_cause, wrong_option
from forebay.flink.jvm import HEAP_MB, PORT_VARIABLE, import_path, start_jvm
from forebay.flink.rest import FlinkRest, TlsKeys, tls_keys
from forebay.flink.shards import MAX_PARALLELISM
from forebay.flink.thread_mode import FEW_RECORDS, MODE, ONE_MODE, import_functions
from forebay.settings import load_settings

REMOTE = {"execution.target": "remote", "execution.attached": "true"}
ONE_JVM = {"heartbeat.timeout": "30 min"}
"""Flink's default is 50 s. After a longer pause of the machine, job and task manager would each give up the
other, and the job would restart.
"""
WORKERS_VARIABLE = "_python_worker_execution_mode"
JAR_KEYS = {"pipeline.jars", "pipeline.classpaths"}
MAX_PAUSE_MS = 500
MIN_NETWORK_MB, MAX_NETWORK_MB = 4, 64


DELAY_GROWTH = 4.0
"""From 0.1 s to 30 s, ten restarts outlast an outage of about three minutes."""


@dataclass(frozen=True, slots=True)
class Restart:
    attempts: int | None = 10
    delay_s: float = 1.0
    max_delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class FlinkConfig:
    """How a job runs.

    `cluster`: `HOST:PORT` of its REST service; None: embedded. A cluster's machines need this Python with
    Forebay at the same path, and opt/flink-python-*.jar in lib/. `options` are Flink's own, and override
    everything else. With several `task_managers`, open a `standalone_cluster`. The first environment of a
    process decides `log_dir` (made private), `heap_mb` and the class path of its JVM.
    """

    parallelism: int = 1
    task_managers: int = 1
    checkpoint_dir: Location | None = None
    checkpoint_interval_s: float | None = None
    checkpoints_kept: int = 2
    restore_from: Location | None = None
    restart: Restart = field(default_factory=Restart)
    cluster: str | None = None
    log_dir: Path | None = None
    heap_mb: int = HEAP_MB
    archive_dir: Path | None = None
    jars: tuple[Path, ...] = ()
    plugins: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def flink_environment(config: FlinkConfig) -> StreamExecutionEnvironment:
    """Start this process's JVM if needed (seconds, blocking). Raises `SettingError` and `LaunchError`."""
    options = secured_options(config)
    # Otherwise PyFlink starts a server for worker processes, of which there are none.
    os.environ.setdefault(WORKERS_VARIABLE, "process")
    import_functions()
    start_jvm(log_dir(config), heap_mb=config.heap_mb, jars=config.jars, archive_dir=config.archive_dir)

    def make(configuration: Configuration) -> StreamExecutionEnvironment:
        if config.plugins is not None:
            # Also for a cluster, which has its own: the client of a job looks at its places.
            load_file_systems(config.plugins, options)
        if config.cluster is None and config.task_managers == 1:
            return StreamExecutionEnvironment.get_execution_environment(configuration)
        # The call above would make an embedded cluster in a JVM that `flink run` did not start.
        java = get_gateway().jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        return StreamExecutionEnvironment(java(configuration._j_configuration))

    return _made(make, options)


def _made(
    make: Callable[[Configuration], StreamExecutionEnvironment], options: Mapping[str, str]
) -> StreamExecutionEnvironment:
    # One call a key; `set_string` makes ten.
    java = get_gateway().jvm.org.apache.flink.configuration.Configuration
    configuration = Configuration(j_configuration=java.fromMap(dict(options)))
    for key in JAR_KEYS & options.keys():
        # This loads the jars, too.
        configuration.set_string(key, options[key])
    try:
        env = make(configuration)
    except Py4JJavaError as error:
        raise SettingError(wrong_option(error) or f"Flink's options: {java_cause(error)}") from None
    # PyFlink's environment reads this only from the setter.
    env.set_python_executable(sys.executable)
    return env


def application_environment(config: FlinkConfig) -> StreamExecutionEnvironment:
    """The environment of the cluster that runs this program (application mode). Raises `SettingError`."""
    if PORT_VARIABLE not in os.environ:
        raise SettingError(
            f"{PORT_VARIABLE} is not set: this program is run by Flink (PythonDriver), not by hand; "
            f"`forebay run` runs a pipeline"
        )
    import_functions()
    return _made(StreamExecutionEnvironment.get_execution_environment, application_options(config))


def own_rest(env: StreamExecutionEnvironment) -> FlinkRest:
    port = get_gateway().jvm.org.apache.flink.configuration.RestOptions.PORT
    return FlinkRest(f"http://localhost:{env._j_stream_execution_environment.getConfiguration().get(port)}")


def _pause_ms(interval_s: float) -> int:
    """The minimum time between two checkpoints, in which the first one's Kafka transactions are committed.

    Otherwise the second contains them. After a restore, Flink commits them again, which fails and aborts the
    producer's next transaction, so its results are lost (Flink's connector 5.0, Kafka 4).
    """
    return min(MAX_PAUSE_MS, round(interval_s * 500))


def embedded_rest(config: FlinkConfig, port: int) -> FlinkRest:
    return FlinkRest(f"https://localhost:{port}", _keys(config))


def _keys(config: FlinkConfig) -> TlsKeys:
    return tls_keys(log_dir(config) / "keys")


def log_dir(config: FlinkConfig) -> Path:
    return config.log_dir or load_settings().run / "flink"


def secured_options(config: FlinkConfig) -> dict[str, str]:
    options = flink_options(config)
    return options if config.cluster is not None else _keys(config).flink_options() | options


def flink_options(config: FlinkConfig) -> dict[str, str]:
    if (config.checkpoint_dir is None) != (config.checkpoint_interval_s is None):
        raise SettingError("checkpoint_dir and checkpoint_interval_s go together: set both or neither")
    if not 1 <= config.parallelism <= MAX_PARALLELISM:
        raise SettingError(f"parallelism must be from 1 to {MAX_PARALLELISM}, found {config.parallelism}")
    if not 1 <= config.task_managers <= (1 if config.cluster else config.parallelism):
        raise SettingError(
            f"task_managers must be from 1 to parallelism ({config.parallelism}), and 1 on a cluster, which "
            f"has its own; found {config.task_managers}"
        )
    options = {
        **_job_options(config),
        **(
            _local_options(config.parallelism) if config.cluster is None else _cluster_options(config.cluster)
        ),
        **(REMOTE if config.task_managers > 1 else {}),
        **(ONE_JVM if config.cluster is None and config.task_managers == 1 else {}),
    }
    brought = list(config.jars)
    if config.cluster is not None:
        # For clusters without this jar in lib/, which runs Python operators.
        brought += sorted(Path(pyflink.__path__[0], "opt").glob("flink-python*.jar"))
    # Jars on the class path of task managers would be loaded twice.
    if brought and config.task_managers == 1:
        options["pipeline.jars"] = ";".join(jar.absolute().as_uri() for jar in brought)
    if config.checkpoint_dir is not None and config.checkpoint_interval_s is not None:
        options["execution.checkpointing.dir"] = uri_of(config.checkpoint_dir)
        options |= _checkpoint_options(config.checkpoint_interval_s, config.checkpoints_kept)
    if config.restore_from is not None:
        here = config.cluster is None and isinstance(config.restore_from, Path)
        if here and not Path(str(config.restore_from), "_metadata").is_file():
            raise SettingError(f"{config.restore_from} is not a complete checkpoint: it holds no _metadata")
        options["execution.state-recovery.path"] = uri_of(config.restore_from)
    return _checked({**options, **config.options})


def application_options(config: FlinkConfig) -> dict[str, str]:
    options = _job_options(config)
    if config.checkpoint_interval_s is not None:
        options |= _checkpoint_options(config.checkpoint_interval_s, config.checkpoints_kept)
    return _checked({**options, **config.options})


def _checked(options: dict[str, str]) -> dict[str, str]:
    if options[MODE] != "thread":
        raise SettingError(f"Flink's options: {MODE}: found {options[MODE]!r}; {ONE_MODE}; leave it out")
    return _unfiltered_labels(options) | options


def _unfiltered_labels(options: Mapping[str, str]) -> dict[str, str]:
    """By default, Flink's reporters for Prometheus export the label `le="0.5"` of a bucket as `0_5`."""
    factory = ".factory.class"
    return {
        f"{key.removesuffix(factory)}.filterLabelValueCharacters": "false"
        for key, value in options.items()
        if key.endswith(factory) and value.startswith("org.apache.flink.metrics.prometheus.")
    }


def _job_options(config: FlinkConfig) -> dict[str, str]:
    return {
        "execution.runtime-mode": "STREAMING",
        "parallelism.default": str(config.parallelism),
        "pipeline.max-parallelism": str(MAX_PARALLELISM),
        MODE: "thread",
        "python.executable": sys.executable,
        "python.pythonpath": import_path(),
        "execution.buffer-timeout.interval": "0 ms",
        "pipeline.object-reuse": "false",
        **_restart_options(config.restart),
    }


def _checkpoint_options(interval_s: float, kept: int) -> dict[str, str]:
    return {
        "execution.checkpointing.interval": f"{round(interval_s * 1000)} ms",
        "execution.checkpointing.min-pause": f"{_pause_ms(interval_s)} ms",
        "execution.checkpointing.num-retained": str(kept),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.tolerable-failed-checkpoints": "10",
    }


def _restart_options(restart: Restart) -> dict[str, str]:
    if restart.attempts == 0:
        return {"restart-strategy.type": "none"}
    delay = f"{round(restart.delay_s * 1000)} ms"
    if restart.max_delay_s is None:
        attempts = 2**31 - 1 if restart.attempts is None else restart.attempts
        prefix = "restart-strategy.fixed-delay"
        return {
            "restart-strategy.type": "fixed-delay",
            f"{prefix}.attempts": str(attempts),
            f"{prefix}.delay": delay,
        }
    prefix = "restart-strategy.exponential-delay"
    options = {
        "restart-strategy.type": "exponential-delay",
        f"{prefix}.initial-backoff": delay,
        f"{prefix}.max-backoff": f"{round(restart.max_delay_s * 1000)} ms",
        f"{prefix}.backoff-multiplier": str(DELAY_GROWTH),
        f"{prefix}.reset-backoff-threshold": "10 min",
    }
    if restart.attempts is not None:
        options[f"{prefix}.attempts-before-reset-backoff"] = str(restart.attempts)
    return options


def _local_options(parallelism: int) -> dict[str, str]:
    # Allocated in full at the start. A shuffle needs some 3 * parallelism^2 buffers.
    network = f"{min(MAX_NETWORK_MB, max(MIN_NETWORK_MB, 4 * parallelism))} mb"
    return {
        # Any free port: several jobs may run on one machine.
        "rest.port": "0",
        "rest.bind-port": "0",
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "jobmanager.bind-host": "localhost",
        "taskmanager.bind-host": "localhost",
        "taskmanager.host": "localhost",
        "web.submit.enable": "false",
        "taskmanager.memory.network.min": network,
        "taskmanager.memory.network.max": network,
        "taskmanager.memory.managed.size": "64 mb",
        **FEW_RECORDS,
    }


def _cluster_options(cluster: str) -> dict[str, str]:
    host, _, port = cluster.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f"cluster must be HOST:PORT of Flink's REST service, found {cluster!r}")
    return {**REMOTE, "rest.address": host, "rest.port": port}


FILE_SYSTEM_KEYS = ("s3.", "s3a.", "fs.", "io.", "plugin.", "security.delegation.")
LOADED = "forebay.file-systems"


def load_file_systems(plugins: Path, options: Mapping[str, str]) -> None:
    """Load file systems into this JVM, unlike an embedded cluster. Blocks. Raises `Py4JJavaError`."""
    gateway = java_gateway.get_gateway()
    chosen = sorted((key, value) for key, value in options.items() if key.startswith(FILE_SYSTEM_KEYS))
    mark = hashlib.blake2b(repr((str(plugins), chosen)).encode(), digest_size=16).hexdigest()
    if gateway.jvm.System.getProperty(LOADED) == mark:
        return
    mute_hadoop(gateway.jvm)
    flink = gateway.jvm.org.apache.flink
    configuration = flink.configuration.Configuration.fromMap(dict(options))
    folder = gateway.jvm.java.nio.file.Paths.get(
        str(plugins.absolute()), gateway.new_array(gateway.jvm.java.lang.String, 0)
    )
    found = flink.core.plugin.DirectoryBasedPluginFinder(folder).findPlugins()
    patterns = flink.configuration.CoreOptions.getPluginParentFirstLoaderPatterns(configuration)
    manager = flink.core.plugin.DefaultPluginManager(found, patterns)
    flink.core.fs.FileSystem.initialize(configuration, manager)
    gateway.jvm.System.setProperty(LOADED, mark)


def reach_file_system(uri: str) -> None:
    """Make a request to `uri`, so that its file system loads what a job needs. Raises `Py4JError`."""
    place = java_gateway.get_gateway().jvm.org.apache.flink.core.fs.Path(uri)
    place.getFileSystem().exists(place)


def mute_hadoop(java: Any) -> None:
    log4j = java.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.hadoop", log4j.Level.ERROR)
