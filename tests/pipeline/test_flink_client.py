"""A job's topics are planned once ahead of its build, and a failed plan does no harm."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import LaunchError, PipelineFailed
from forebay.flink.job import JvmGone
from forebay.pipeline import flink_client
from forebay.pipeline.attempt import imports_of
from forebay.pipeline.flink_client import FlinkClient, plan_ahead
from forebay.pipeline.load import parse_spec
from forebay.pipeline.messages import AttemptLost, Failed, Report, decode_report
from forebay.pipeline.plan import Plan
from forebay.settings import Settings

ACCESS = {"type": "kafka", "bootstrap": "127.0.0.1:9"}
FILES = {"source": {"type": "jsonl", "path": "in.jsonl"}, "sink": {"type": "jsonl", "path": "out"}}

PLANNED = """
import sys
from pathlib import Path
from forebay.flink.jvm import launch_jvm
from forebay.pipeline.load import parse_spec
from forebay.pipeline.flink_client import plan_ahead
from forebay.pipeline.plan import Plan
from forebay.settings import Settings

home, jar = map(Path, sys.argv[1:])
jvm = launch_jvm(home / "logs", heap_mb=512, jars=[jar], archive_dir=home / "java")
jvm.connect()
access = {"type": "kafka", "bootstrap": "127.0.0.1:9"}
source = {**access, "topics": ["in"]}
for document in (
    {"source": source, "sink": {**access, "topic": "out"}, "dead_letters": {**access, "topic": "letters"}},
    {"source": {"type": "generator"}, "sink": {**access, "topic": "out"}},
):
    print(plan_ahead(Plan(parse_spec({"name": "p", "prompt": "x", **document}), Settings(home, Path()))))
jvm.end()
"""


def plan(home: Path, **changes: Any) -> Plan:
    spec = parse_spec({"name": "p", "prompt": "x", **FILES, **changes})
    return Plan(spec, Settings(home, Path()))


def test_nothing_to_plan_without_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink_client, "flink_environment", lambda config: pytest.fail("planned"))
    assert not plan_ahead(plan(tmp_path))


@pytest.mark.parametrize(
    ("changes", "modules"),
    [
        ({}, ()),
        ({"output": {"schema": {"type": "object"}}}, ("jsonschema",)),
        ({"engine": {"kubernetes": "decode:http"}, "scaling": {"max": 2}}, ("forebay.flink.demand",)),
    ],
)
def test_tasks_find_what_they_need_imported(
    tmp_path: Path, changes: dict[str, Any], modules: tuple[str, ...]
) -> None:
    assert imports_of(plan(tmp_path, **changes).spec) == modules


def test_plan_errors_are_left_to_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_jvm(config: object) -> None:
        raise LaunchError("no JVM")

    monkeypatch.setattr(flink_client, "flink_environment", no_jvm)
    assert not plan_ahead(plan(tmp_path, source={**ACCESS, "topics": ["in"]}))


@pytest.mark.long
@pytest.mark.flink
def test_topics_are_planned_without_a_broker(kafka_jar: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "connectors").mkdir(parents=True)
    (home / "connectors" / kafka_jar.name).symlink_to(kafka_jar)
    done = subprocess.run(
        [sys.executable, "-c", PLANNED, str(home), str(kafka_jar)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
    # Not the one in its loader, which no archive of classes can hold.
    assert len(list((home / "java").glob("flink-table-planner-*.jar"))) == 1


class Ended(BaseException):
    """Instead of the end of the process."""


class Jvm:
    """A JVM that was killed, whose end the system has not reported yet."""

    archive = None

    def __init__(self) -> None:
        self.process = self
        self.waited_for = False

    def connect(self) -> None: ...

    def wait(self) -> int:
        threading.Event().wait()
        raise AssertionError

    def await_end(self, timeout_s: float) -> None:
        self.waited_for = True


def last_words(monkeypatch: pytest.MonkeyPatch, jvm: Jvm, error: Exception) -> Report:
    def attempt(_: FlinkClient) -> Report:
        raise error

    def end(status: int) -> None:
        raise Ended

    monkeypatch.setattr(FlinkClient, "_attempt", attempt)
    monkeypatch.setattr(flink_client.os, "_exit", end)
    reports = io.BytesIO()
    client: Any = FlinkClient(jvm, reports, io.BytesIO(), Path())  # type: ignore[arg-type]
    with pytest.raises(Ended):
        client.serve()
    return decode_report(reports.getvalue())


def test_jvm_found_gone_restarts_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = Jvm()
    assert last_words(monkeypatch, jvm, JvmGone("the JVM is gone")) == AttemptLost("the JVM is gone")
    assert jvm.waited_for


def test_failed_job_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = last_words(monkeypatch, Jvm(), PipelineFailed("a prompt that nobody can render"))
    assert text == Failed("PipelineFailed", "a prompt that nobody can render")
