"""A job through Flink's REST service: cancelling, draining, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from tests.harness.clock import ManualClock

from forebay.errors import PipelineFailed
from forebay.flink import job as module
from forebay.flink.checkpoints import MAX_DRAINS
from forebay.flink.job import Checkpoints, RunningJob, end_job
from forebay.flink.rest import FlinkRest, NotFound


class Rest:
    """A REST service that returns its answers in turn, and the last one repeatedly."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.cancelled = 0

    def __call__(self, url: str, method: str = "GET", wish: object = None) -> bytes:
        if method == "PATCH":
            self.cancelled += 1
            return b""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NotFound(f"{url} answered 404")
        return json.dumps({"state": answer}).encode()


def serve(monkeypatch: pytest.MonkeyPatch, service: Callable[..., bytes]) -> None:
    """Let `service` answer each request of a REST service: address, method, body."""

    def ask(self: FlinkRest, path: str, *more: object) -> bytes:
        return service(self.url + path, *more)

    monkeypatch.setattr(FlinkRest, "ask", ask)


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rest]:
    clock = ManualClock()

    def make(*answers: str | None) -> Rest:
        service = Rest(*answers)
        serve(monkeypatch, service)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic_s, sleep=clock.advance))
        return service

    return make


def end(**more: Any) -> str | None:
    return end_job(FlinkRest("http://flink"), "a", 5.0, **more)


def test_cancel_is_sent_once_and_awaited(rest: Callable[..., Rest]) -> None:
    service = rest("RUNNING", "CANCELLING", "CANCELLING", "CANCELED")
    assert end() == "CANCELED"
    assert service.cancelled == 1


def test_ended_job_is_left_alone(rest: Callable[..., Rest]) -> None:
    service = rest("FINISHED")
    assert end() == "FINISHED"
    assert service.cancelled == 0


def test_job_that_does_not_end_is_reported(rest: Callable[..., Rest]) -> None:
    rest("CANCELLING")
    with pytest.raises(PipelineFailed, match="does not end; it is CANCELLING"):
        end()


def test_job_in_submission_is_awaited(rest: Callable[..., Rest]) -> None:
    rest(None)
    assert end() is None
    assert end(unknown_s=3.0) is None
    service = rest(None, None, "CREATED", "CANCELED")
    assert end(unknown_s=3.0) == "CANCELED"
    assert service.cancelled == 1
    service = rest("RUNNING", None)
    assert end(unknown_s=3.0) is None


class Savepoints:
    """A REST service that accepts stop requests, and answers each with the next of `operations`."""

    def __init__(self, *operations: dict[str, Any] | None) -> None:
        self.operations = list(operations)
        self.wishes: list[Any] = []

    def __call__(self, url: str, method: str = "GET", wish: object = None) -> bytes:
        if method == "POST":
            assert url == "http://flink/jobs/a/stop"
            self.wishes.append(wish)
            return json.dumps({"request-id": f"r{len(self.wishes)}"}).encode()
        assert url == f"http://flink/jobs/a/savepoints/r{len(self.wishes)}"
        operation = self.operations.pop(0)
        if operation is None:
            raise NotFound("404")
        return json.dumps({"status": {"id": "X"}, "operation": operation}).encode()


def test_drain_is_repeated_only_if_it_failed_or_was_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rest = Savepoints({}, {"failure-cause": {"class": "x"}}, {"location": "y"}, None)
    serve(monkeypatch, rest)
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job = RunningJob(client, FlinkRest("http://flink"))
    asked = []
    for _ in range(5):
        job.drain(tmp_path)
        asked.append(len(rest.wishes))
    assert asked == [1, 1, 2, 2, 3]
    assert rest.wishes == [
        {"drain": True, "targetDirectory": (tmp_path / f"drain-{tried}").as_uri(), "formatType": "NATIVE"}
        for tried in range(3)
    ]


def test_drain_is_given_up_after_many_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that takes over occupies the folders of as many drains."""
    failed = {"failure-cause": {"class": "x"}}
    serve(monkeypatch, Savepoints(*[failed] * MAX_DRAINS))
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job = RunningJob(client, FlinkRest("http://flink"))
    for _ in range(MAX_DRAINS):
        job.drain(tmp_path)
    with pytest.raises(PipelineFailed, match=r"could not be drained: 32 savepoints in .* failed"):
        job.drain(tmp_path)


class Metrics:
    """A REST service with two operators, which records its requests."""

    def __init__(self, *names: tuple[str, ...]) -> None:
        self.names = names
        self.asked: list[str] = []

    def __call__(self, url: str, method: str = "GET", wish: object = None) -> bytes:
        path, _, query = url.partition("/subtasks/metrics?get=")
        if query:
            self.asked.append(query)
            names = unquote(query).split(",")
            return json.dumps([{"id": name, "sum": len(name), "min": 0, "max": 1} for name in names]).encode()
        if not url.endswith("/metrics"):
            vertices = [{"id": str(at)} for at in range(len(self.names))]
            return json.dumps({"vertices": vertices}).encode()
        at = int(path.rsplit("/", 3)[1])
        return json.dumps([{"id": name} for name in self.names[at]]).encode()


def test_metric_urls_fit_flinks_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    long = tuple(f"Source__a$1*.{'t' * 249}.partition.{n}.currentOffset" for n in range(100))
    commits = (
        "results: Committer.failedCommittables",
        "letters.failedCommittables",
        "failedCommittables_not",
    )
    operator = ("accumulateBackPressuredTimeMs", "x.forebay.in_flight", "x.forebay.in_flight_not")
    rest = Metrics((*long, "other"), operator, (*commits, "accumulateBackPressuredTimeMs_not"))
    serve(monkeypatch, rest)
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job = RunningJob(client, FlinkRest("http://flink"))
    assert set(job.highest(lambda name: name.endswith("currentOffset"))) == set(long)
    assert len(rest.asked) > 1
    assert max(map(len, rest.asked)) <= module.QUERY_CHARS
    failed = len("".join(commits[:2]))
    in_flight = len("x.forebay.in_flight")
    held_back_ms = len("accumulateBackPressuredTimeMs")
    assert job.counts() == {
        "in_flight": in_flight,
        "held_back_ms": held_back_ms,
        "failedCommittables": failed,
    }


def test_what_the_source_has_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ("records_read___stream_key_by_map_operator.numRecordsOut", "records_read.forebay.read_ppm")
    others = (
        "numRecordsOut",
        "infer.numRecordsOut",
        "records_reader.numRecordsOut",
        "x.numRecordsOutPerSecond",
    )
    serve(monkeypatch, Metrics((*source, *others), ("x.forebay.in_flight", "x.forebay.replicas")))
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    counts = RunningJob(client, FlinkRest("http://flink")).counts()
    assert (counts["read"], counts["read_ppm"], counts["replicas"]) == (len(source[0]), 1, 0)


def test_backpressure_time_is_the_operators_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "accumulateBackPressuredTimeMs"
    rest = Metrics((name,), ("x.forebay.in_flight",), (name,))
    serve(monkeypatch, rest)
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    assert RunningJob(client, FlinkRest("http://flink")).counts()["held_back_ms"] == 0


def test_task_managers_are_polled_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = [], ManualClock()

    def ask(url: str, *more: Any) -> bytes:
        asked.append(url)
        return json.dumps({"taskmanagers": len(asked)}).encode()

    serve(monkeypatch, ask)
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job, told = RunningJob(client, FlinkRest("http://flink"), clock=clock), []
    for _ in range(9):
        told.append(job.task_managers())
        clock.advance(0.5)
    assert told == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert set(asked) == {"http://flink/overview"}


def test_checkpoint_numbers_skip_savepoints_that_commit_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checkpoint(number: int, status: str, *, savepoint: bool = False) -> dict[str, object]:
        moments = {"trigger_timestamp": 10 * number, "end_to_end_duration": number}
        on_their_way = {"persisted_data": 0 if number in (1, 4) else 17}
        return {"id": number, "status": status, "is_savepoint": savepoint, **moments, **on_their_way}

    told = {
        "counts": {"completed": 3, "failed": 1, "restored": 2},
        "history": [
            checkpoint(5, "IN_PROGRESS"),
            checkpoint(4, "COMPLETED", savepoint=True),
            checkpoint(3, "FAILED"),
            checkpoint(2, "COMPLETED"),
            checkpoint(1, "COMPLETED"),
        ],
    }
    serve(monkeypatch, lambda *_: json.dumps(told).encode())
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job = RunningJob(client, FlinkRest("http://flink"))
    assert job.checkpoints() == Checkpoints(
        3, 1, ((10, 1), (20, 2)), newest=5, newest_done=2, newest_clear=1, restored=2
    )


def test_long_metric_name_gets_its_own_request() -> None:
    assert list(module.queries(["a" * 5000, "b", "c"])) == ["a" * 5000, "b,c"]
    assert list(module.queries([])) == []


def test_metric_names_are_listed_often_at_first_then_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rest, clock, listed = Metrics(("a.forebay.results",)), ManualClock(), []

    def ask(url: str, *more: Any) -> bytes:
        listed.extend([clock.monotonic_s()] if url.endswith("/subtasks/metrics") else [])
        return rest(url, *more)

    serve(monkeypatch, ask)
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    job, begun_s = RunningJob(client, FlinkRest("http://flink"), clock=clock), clock.monotonic_s()
    for _ in range(160):
        assert job.counts()["results"] > 0
        clock.advance(0.5)
    assert [at_s - begun_s for at_s in listed] == [*(n / 2 for n in range(40)), 49.5, 79.5]
    rest.names = (("a.forebay.results", "a.forebay.in_flight"),)
    clock.advance(30.0)
    assert "in_flight" in job.counts(), "one that came later is found"
    assert set(job.highest(lambda name: name.endswith("flight"))) == {"a.forebay.in_flight"}
