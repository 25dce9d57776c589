"""A local Flink session cluster for tests, from the Flink that pip installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import pyflink
from pyflink.pyflink_gateway_server import KEY_ENV_JAVA_OPTS, read_from_config

from forebay.errors import LaunchError
from forebay.flink.java import java_home
from forebay.flink.jvm import NATIVE_ACCESS, QUIET
from forebay.ports import free_ports
from forebay.processes import parent_death_signal

JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0


@contextmanager
def local_cluster(
    folder: Path,
    *,
    slots: int = 2,
    heap_mb: int = 512,
    python_jar: bool = True,
    plugins: Path | None = None,
    options: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A Flink session cluster on this machine with one task manager, from the Flink that pip installed.

    A context manager that returns its `HOST:PORT`. Blocks until the cluster is ready, which takes some
    seconds. Its processes end with the block, and on Linux also with this process.

    Args:
        folder: For the cluster's configuration, logs and temporary files.
        slots: Number of task slots.
        heap_mb: Heap for tasks, in MiB.
        python_jar: Put `flink-python.jar` on the cluster's class path, like copying it to `lib/`. Without it,
            the cluster is as `start-cluster.sh` starts it.
        plugins: Folder of Flink plugins, each in its own folder. Default: those that pip installed.
        options: More Flink options.

    Raises `LaunchError`, with the end of the log, if the cluster does not start.

    >>> from pathlib import Path
    >>> with local_cluster(Path("cluster"), slots=1) as address:
    ...     address.startswith("localhost:")
    True
    """
    rest_port, rpc_port = free_ports(2)
    conf = write_configuration(folder, rest_port, rpc_port, slots, heap_mb, more=options)
    processes = [
        start_process(
            folder, conf, name=name, main=main, heap_mb=heap_mb, python_jar=python_jar, plugins=plugins
        )
        for name, main in (("jobmanager", JOB_MANAGER), ("taskmanager", TASK_MANAGER))
    ]
    try:
        _await_slots(folder, processes, f"http://localhost:{rest_port}/overview", slots)
        yield f"localhost:{rest_port}"
    finally:
        stop_processes(processes)


def write_configuration(
    folder: Path,
    rest_port: int,
    rpc_port: int,
    slots: int,
    heap_mb: int,
    *,
    more: Mapping[str, str] | None = None,
) -> Path:
    conf, temporary = folder / "conf", folder / "tmp"
    conf.mkdir(parents=True)
    temporary.mkdir()
    shutil.copy(Path(pyflink.__path__[0]) / "conf" / "log4j.properties", conf)
    options = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": rpc_port,
        "jobmanager.bind-host": "localhost",
        "rest.address": "localhost",
        "rest.bind-address": "localhost",
        "rest.port": rest_port,
        "taskmanager.host": "localhost",
        "taskmanager.bind-host": "localhost",
        "taskmanager.numberOfTaskSlots": slots,
        "io.tmp.dirs": str(temporary),
        # Flink's scripts compute these; a task manager started without them requires each one.
        "taskmanager.cpu.cores": slots,
        "taskmanager.memory.task.heap.size": f"{heap_mb}m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.network.min": "64m",
        "taskmanager.memory.network.max": "64m",
        "taskmanager.memory.managed.size": "64m",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
        **(more or {}),
    }
    (conf / "config.yaml").write_bytes(orjson.dumps(options))
    return conf


def start_process(
    folder: Path,
    conf: Path,
    *,
    name: str,
    main: str,
    heap_mb: int,
    python_jar: bool = True,
    arguments: Sequence[str] = (),
    python_path: str | None = None,
    plugins: Path | None = None,
    connectors: Sequence[Path] = (),
) -> subprocess.Popen[bytes]:
    """Start a cluster process that runs class `main`; its output goes to `NAME.out`.

    `python_path` becomes PYTHONPATH of Python processes that it starts; `connectors` are jars for its class
    path.
    """
    home = Path(pyflink.__path__[0])
    jars = [*sorted((home / "lib").glob("*.jar")), *connectors]
    if python_jar:
        jars += sorted((home / "opt").glob("flink-python*.jar"))
    opens = read_from_config(KEY_ENV_JAVA_OPTS, "", str(home / "conf")).split()
    log = folder / f"{name}.log"
    command = [
        str(java_home() / "bin" / "java"),
        f"-Xmx{heap_mb + 256}m",
        *("-XX:+IgnoreUnrecognizedVMOptions", *QUIET, *NATIVE_ACCESS, *opens),
        *("-Djava.security.manager=allow", f"-Dlog.file={log}"),
        f"-Dlog4j.configurationFile=file:{conf / 'log4j.properties'}",
        *("-cp", os.pathsep.join(map(str, jars)), main, "--configDir", str(conf), *arguments),
    ]
    # Locate files and plugins like Flink's scripts do.
    environment = {
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LIB_DIR": str(home / "lib"),
        "FLINK_OPT_DIR": str(home / "opt"),
        "FLINK_PLUGINS_DIR": str(plugins or home / "plugins"),
        "JAVA_HOME": str(java_home()),
        **({} if python_path is None else {"PYTHONPATH": python_path}),
    }
    with (folder / f"{name}.out").open("wb") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
            start_new_session=True,
            preexec_fn=parent_death_signal(signal.SIGTERM),  # noqa: PLW1509 - calls one C function
        )


def _await_slots(folder: Path, processes: list[subprocess.Popen[bytes]], url: str, slots: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline_s and all(process.poll() is None for process in processes):
        try:
            with direct.open(url, timeout=5) as answer:
                if orjson.loads(answer.read(65536)).get("slots-total") == slots:
                    return
        except (urllib.error.URLError, OSError, orjson.JSONDecodeError):
            pass
        time.sleep(0.1)
    detail = "".join(
        f"\n{file.name}: {file.read_text(errors='replace')[-1500:]}"
        for file in sorted((*folder.glob("*.out"), *folder.glob("*.log")))
    )
    raise LaunchError(f"the local Flink cluster did not start:{detail}")


def stop_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
