from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from forebay.connectors.files.sink import JsonlFiles, jsonl_sink, read_jsonl_sink
from forebay.connectors.generator.source import Generator, generator_source
from forebay.errors import SettingError
from forebay.flink.environment import (
    WORKERS_VARIABLE,
    FlinkConfig,
    Restart,
    flink_environment,
    flink_options,
    secured_options,
)
from forebay.flink.jvm import import_path
from forebay.testing.cluster import local_cluster
from forebay.testing.waiting import wait_until


def test_checkpoints_are_kept_and_unaligned(tmp_path: Path) -> None:
    options = flink_options(
        FlinkConfig(checkpoint_dir=tmp_path, checkpoint_interval_s=0.5, checkpoints_kept=3)
    )
    prefix = "execution.checkpointing"
    assert options[f"{prefix}.dir"] == tmp_path.as_uri()
    assert options[f"{prefix}.interval"] == "500 ms"
    # Kafka's transactions are committed in it, before the next checkpoint holds them again.
    assert options[f"{prefix}.min-pause"] == "250 ms"
    assert options[f"{prefix}.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    assert options[f"{prefix}.unaligned.enabled"] == "true"
    assert options[f"{prefix}.num-retained"] == "3"


@pytest.mark.parametrize(
    ("restart", "expected"),
    [
        (Restart(attempts=0), {"type": "none"}),
        (
            Restart(3, 0.5),
            {"type": "fixed-delay", "fixed-delay.attempts": "3", "fixed-delay.delay": "500 ms"},
        ),
        (
            Restart(None, 1, 60),
            {
                "type": "exponential-delay",
                "exponential-delay.initial-backoff": "1000 ms",
                "exponential-delay.max-backoff": "60000 ms",
                "exponential-delay.backoff-multiplier": "4.0",
                "exponential-delay.reset-backoff-threshold": "10 min",
            },
        ),
    ],
)
def test_restarts(restart: Restart, expected: dict[str, str]) -> None:
    options = flink_options(FlinkConfig(restart=restart))
    found = {key: value for key, value in options.items() if key.startswith("restart-strategy.")}
    assert found == {f"restart-strategy.{key}": value for key, value in expected.items()}


def test_flinks_own_options_win(tmp_path: Path) -> None:
    config = FlinkConfig(parallelism=2, options={"parallelism.default": "3", "x.y": "z"})
    assert flink_options(config)["parallelism.default"] == "3"
    assert flink_options(config)["x.y"] == "z"


def test_embedded_cluster_uses_a_free_port_and_remote_the_given() -> None:
    assert flink_options(FlinkConfig())["rest.port"] == "0"
    options = flink_options(FlinkConfig(cluster="[::1]:8081"))
    assert (options["rest.address"], options["rest.port"]) == ("[::1]", "8081")
    assert options["execution.target"] == "remote"
    assert "flink-python" in options["pipeline.jars"]


@pytest.mark.parametrize(("parallelism", "mb"), [(1, 4), (4, 16), (8, 32), (100, 64)])
def test_network_memory_follows_parallelism(parallelism: int, mb: int) -> None:
    options = flink_options(FlinkConfig(parallelism=parallelism))
    names = ("taskmanager.memory.network.min", "taskmanager.memory.network.max")
    assert [options[name] for name in names] == [f"{mb} mb"] * 2


def test_heartbeat_timeout_is_long_only_if_there_is_one_jvm() -> None:
    assert flink_options(FlinkConfig())["heartbeat.timeout"] == "30 min"
    for config in (FlinkConfig(parallelism=2, task_managers=2), FlinkConfig(cluster="h:1")):
        assert "heartbeat.timeout" not in flink_options(config)


def test_own_task_managers_get_the_jars() -> None:
    jars, port = (Path("connector.jar"),), {"rest.port": "1"}
    options = flink_options(FlinkConfig(parallelism=2, task_managers=2, jars=jars, options=port))
    assert options["execution.target"] == "remote"
    assert "pipeline.jars" not in options
    alone = flink_options(FlinkConfig(parallelism=2, jars=jars))
    assert "execution.target" not in alone
    assert alone["pipeline.jars"].endswith("connector.jar")


@pytest.mark.parametrize("given", [{}, {"metrics.reporter.a.filterLabelValueCharacters": "true"}])
def test_reporters_for_prometheus_keep_the_bounds_of_buckets(given: dict[str, str]) -> None:
    reporters = {
        "metrics.reporter.a.factory.class": "org.apache.flink.metrics.prometheus.PrometheusReporterFactory",
        "metrics.reporter.b.factory.class": "org.apache.flink.metrics.slf4j.Slf4jReporterFactory",
    }
    options = flink_options(FlinkConfig(options=reporters | given))
    found = {name: value for name, value in options.items() if "filterLabel" in name}
    assert found == {"metrics.reporter.a.filterLabelValueCharacters": "false"} | given


def test_local_flink_rejects_clients_without_a_key(tmp_path: Path) -> None:
    for here in (
        FlinkConfig(log_dir=tmp_path),
        FlinkConfig(log_dir=tmp_path, parallelism=2, task_managers=2),
    ):
        assert secured_options(here)["security.ssl.rest.authentication-enabled"] == "true"
    assert "security.ssl.rest.enabled" not in secured_options(FlinkConfig(cluster="h:1", log_dir=tmp_path))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (FlinkConfig(checkpoint_interval_s=1), "checkpoint_dir and checkpoint_interval_s"),
        (FlinkConfig(checkpoint_dir=Path("x")), "checkpoint_dir and checkpoint_interval_s"),
        (FlinkConfig(parallelism=0), "parallelism must be from 1 to 128"),
        (FlinkConfig(parallelism=129), "found 129"),
        (FlinkConfig(restore_from=Path("/nowhere/chk-1")), "/nowhere/chk-1"),
        (FlinkConfig(task_managers=0), "found 0"),
        (FlinkConfig(task_managers=2), r"task_managers must be from 1 to parallelism \(1\)"),
        (FlinkConfig(parallelism=2, task_managers=2, cluster="host:1"), "1 on a cluster, which has its own"),
        (FlinkConfig(cluster="somewhere"), "HOST:PORT"),
        (FlinkConfig(cluster="host:99999"), "host:99999"),
        (FlinkConfig(options={"python.execution-mode": "process"}), "python.execution-mode: .* leave it out"),
    ],
)
def test_contradicting_settings(config: FlinkConfig, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        flink_options(config)


def test_import_path_has_packages_and_source_but_no_stdlib() -> None:
    paths = import_path().split(os.pathsep)
    assert paths[0] == sysconfig.get_path("purelib")
    assert sysconfig.get_path("stdlib") not in paths
    command = "import forebay, pyflink; print(forebay.__file__)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", command],
        env={"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip().endswith("__init__.py")


@pytest.mark.flink
@pytest.mark.slow
def test_jvm_changes_only_flinks_variables_and_logs_to_its_folder(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from py4j.java_gateway import GatewayConnection
from forebay.flink.environment import FlinkConfig, flink_environment
before, calls, send = dict(os.environ), [], GatewayConnection.send_command
GatewayConnection.send_command = lambda self, command: calls.append(command) or send(self, command)
env = flink_environment(FlinkConfig(log_dir=Path({str(tmp_path)!r}), heap_mb=300))
# Each takes a tenth of a millisecond or longer; option by option, there were more than 700.
assert len(calls) < 300, len(calls)
changed = {{key for key, value in os.environ.items() if before.get(key) != value}}
assert {{key for key in changed if not key.startswith("FLINK_")}} == {{{WORKERS_VARIABLE!r}}}, changed
env.from_collection([1, 2]).map(lambda number: number * 21).print()
env.execute("test")
"""
    # This process may have started a JVM of its own, with the same variable.
    environment = {key: value for key, value in os.environ.items() if key != WORKERS_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert sorted(done.stdout.split()) == ["21", "42"], done.stderr
    # Beam logs this if a package, such as that of traces, has installed part of Google's namespace.
    text = [
        line for line in done.stderr.splitlines() if not line.startswith("Failed to import GCSFileSystem")
    ]
    assert text == []
    assert any(file.stat().st_size > 1000 for file in tmp_path.glob("flink-*.log"))


@pytest.mark.long
@pytest.mark.flink
def test_jobs_run_on_an_existing_cluster(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "cluster") as address:
        for _ in range(2):
            env = flink_environment(
                FlinkConfig(cluster=address, log_dir=tmp_path / "log", restart=Restart(attempts=0))
            )
            posts = generator_source(env, Generator(count=20, paced=False))
            jsonl_sink(posts.map(lambda data: str(len(data))), JsonlFiles(tmp_path / "out"))
            env.execute("test")
        assert len(list(read_jsonl_sink(tmp_path / "out"))) == 40

    def gone() -> bool:
        ps = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return str(tmp_path / "cluster") not in ps.stdout

    # What was killed may take a moment to end.
    wait_until(gone)
