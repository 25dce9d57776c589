"""A pipeline as the program of an application cluster, as Kubernetes starts one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.connectors.kafka.admin import Place
from forebay.errors import SettingError
from forebay.fleet.discovery import FixedReplicas
from forebay.flink.environment import FlinkConfig, application_environment, application_options
from forebay.flink.jvm import import_path
from forebay.pipeline import application
from forebay.pipeline.application import main, run_application
from forebay.pipeline.inference import Served
from forebay.pipeline.kafka.offsets import GroupOffsets
from forebay.pipeline.kafka.start import KafkaStart
from forebay.pipeline.load import parse_spec
from forebay.ports import free_ports
from forebay.testing import ReplicaThread, wait_until
from forebay.testing.cluster import TASK_MANAGER, start_process, stop_processes, write_configuration

APPLICATION = "org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint"
DRIVER = "org.apache.flink.client.python.PythonDriver"
PROGRAM = (
    "--job-classname",
    DRIVER,
    *("-pyclientexec", sys.executable, "-pyexec", sys.executable),
    *("-pym", "forebay.pipeline.application"),
)
"""Arguments of a job manager that runs a pipeline, before the program's own."""
EVENTS = 40
SCALED = {
    "name": "p",
    "source": {"type": "kafka", "bootstrap": "kafka:9092", "topics": ["t"]},
    "prompt": "{{ text }}",
    "engine": "http://engine:1",
    "scaling": {"max": 2},
    "sink": {"type": "jsonl", "path": "out"},
}


def test_program_outside_flink_explains_how_to_run_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYFLINK_GATEWAY_PORT", raising=False)
    with pytest.raises(SettingError, match="`forebay run` runs a pipeline"):
        application_environment(FlinkConfig())


def test_cluster_configuration_sets_state_and_restore() -> None:
    options = application_options(FlinkConfig(checkpoint_interval_s=2.0))
    assert options["execution.checkpointing.interval"] == "2000 ms"
    assert not {
        "execution.checkpointing.dir",
        "execution.state-recovery.path",
        "pipeline.jars",
        "execution.target",
        "rest.port",
    } & set(options)


def test_error_in_the_pipeline_file_ends_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text("name: p\n")
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "p.yaml"), "--state-id", "s"])
    assert end.value.code == 1


@pytest.mark.parametrize("url", ["triage-queue:8082", "http://triage-queue", "http://a:b/", "https://a:1/"])
def test_address_without_a_port_is_an_error(url: str) -> None:
    with pytest.raises(SettingError, match="--queue-url: expected http://HOST:PORT, found"):
        run_application(parse_spec(SCALED), "s", url)


class Faked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = [Place("t", 0, 1000)]
        self.counted: list[object] = []
        self.awaited = 0
        self.cause = ""

        @contextmanager
        def watched(spec: object, job: object, *, before: object, **_: object) -> Iterator[None]:
            self.counted.append(before)
            yield

        @contextmanager
        def told(*_: object, looked: object, **__: object) -> Iterator[None]:
            assert isinstance(looked, GroupOffsets)
            yield

        for name in ("check_secrets", "application_environment", "await_brokers", "build", "own_rest"):
            monkeypatch.setattr(application, name, lambda *_, **__: None)
        monkeypatch.setattr(application, "served_by", lambda *_: Served(FixedReplicas(("http://e:1",)), "m"))
        monkeypatch.setattr(application, "submit", lambda *_: self)
        monkeypatch.setattr(application, "read_before", lambda spec: tuple(self.kafka))
        monkeypatch.setattr(application, "begin", self.set_back)
        monkeypatch.setattr(application, "lag_watched", watched)
        monkeypatch.setattr(application, "backlog_served", told)

    def set_back(self, spec: object, generations: object, *, first: bool, strict: bool) -> KafkaStart:
        assert not first
        assert not strict
        self.kafka[:] = [Place("t", 0, 0)]
        return KafkaStart()

    def checkpoints(self) -> None: ...

    def await_end(self) -> str:
        self.awaited += 1
        return self.cause


def test_read_offsets_are_known_although_a_start_resets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all records since the pipeline's first start would count as backlog at each start of a job
    manager.
    """
    faked = Faked(monkeypatch)
    run_application(parse_spec(SCALED), "s", "http://queue:8082/")
    assert faked.counted == [(Place("t", 0, 1000),)]


def test_program_stays_only_to_count_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    faked = Faked(monkeypatch)
    run_application(parse_spec(SCALED), "s", None)
    run_application(parse_spec({**SCALED, "scaling": None}), "s", "http://queue:8082/")
    assert faked.awaited == len(faked.counted) == 0
    run_application(parse_spec(SCALED), "s", "http://queue:8082/")
    assert faked.awaited == len(faked.counted) == 1


def test_failed_job_is_not_the_programs_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Faked(monkeypatch).cause = "JobCancellationException: Job was cancelled."
    run_application(parse_spec(SCALED), "s", "http://queue:8082/")
    assert "JobCancellationException: Job was cancelled." in caplog.text


@pytest.mark.flink
@pytest.mark.slow
def test_cluster_runs_the_pipeline_to_its_end(tmp_path: Path) -> None:
    lines = [orjson.dumps({"id": number, "text": f"event {number}"}) for number in range(EVENTS)]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    with ReplicaThread() as replica:
        document = {
            "name": "on-its-own",
            "source": {"type": "jsonl", "path": str(tmp_path / "in.jsonl")},
            "prompt": "{{ text }}",
            "id": "{{ id }}",
            "engine": replica.url,
            "sink": {"type": "jsonl", "path": str(tmp_path / "out")},
            "checkpoint": {"interval_s": 1.0},
        }
        # JSON is YAML.
        (tmp_path / "pipeline.yaml").write_bytes(orjson.dumps(document))
        job_manager = run_cluster(tmp_path)
    assert job_manager.returncode == 0, (tmp_path / "jobmanager.log").read_text()[-3000:]
    found = sorted(int(orjson.loads(line)["id"]) for line in read_jsonl_sink(tmp_path / "out"))
    assert found == list(range(EVENTS))


def run_cluster(folder: Path) -> subprocess.Popen[bytes]:
    """Run the pipeline in `folder` with the program's arguments of a FlinkDeployment; return the job manager,
    which ends with the job.
    """
    rest_port, rpc_port = free_ports(2)
    conf = write_configuration(folder, rest_port, rpc_port, slots=1, heap_mb=512)
    options = orjson.loads((conf / "config.yaml").read_bytes())
    options["execution.checkpointing.dir"] = (folder / "state").as_uri()
    options["python.executable"] = options["python.client.executable"] = sys.executable
    (conf / "config.yaml").write_bytes(orjson.dumps(options))
    arguments = [*PROGRAM, str(folder / "pipeline.yaml"), "--state-id", "s"]
    path = import_path()
    processes = [
        start_process(
            folder,
            conf,
            name="jobmanager",
            main=APPLICATION,
            heap_mb=512,
            arguments=arguments,
            python_path=path,
        ),
        start_process(folder, conf, name="taskmanager", main=TASK_MANAGER, heap_mb=512, python_path=path),
    ]
    try:
        wait_until(lambda: processes[0].poll() is not None, describe=lambda: _end(folder))
        return processes[0]
    finally:
        stop_processes(processes)


def _end(folder: Path) -> str:
    return "\n".join(path.read_text()[-2000:] for path in folder.glob("*manager.*"))
