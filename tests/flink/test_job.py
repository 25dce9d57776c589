"""A job through Flink's REST service: cancelling, draining, metrics, and its failures in one line."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from tests.harness.clock import ManualClock

from forebay.errors import PipelineFailed, SettingError
from forebay.flink import job as module
from forebay.flink.checkpoints import MAX_DRAINS
from forebay.flink.job import MAX_CAUSE_CHARS, Checkpoints, JvmGone, RunningJob, end_job, root_cause, submit
from forebay.flink.metrics import SHARD_MARKS
from forebay.flink.rest import FlinkRest, NotFound


class Rest:
    """A REST service that returns its answers in turn, and the last one repeatedly."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.cancelled = 0

    def __call__(self, url: str, method: str = "GET", payload: object = None) -> bytes:
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


def job_a(clock: ManualClock | None = None) -> RunningJob:
    client: Any = SimpleNamespace(get_job_id=lambda: "a", get_job_execution_result=lambda: None)
    return RunningJob(client, FlinkRest("http://flink"), clock=clock)


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
        self.bodies: list[Any] = []

    def __call__(self, url: str, method: str = "GET", payload: object = None) -> bytes:
        if method == "POST":
            assert url == "http://flink/jobs/a/stop"
            self.bodies.append(payload)
            return json.dumps({"request-id": f"r{len(self.bodies)}"}).encode()
        assert url == f"http://flink/jobs/a/savepoints/r{len(self.bodies)}"
        operation = self.operations.pop(0)
        if operation is None:
            raise NotFound("404")
        return json.dumps({"status": {"id": "X"}, "operation": operation}).encode()


def test_drain_is_repeated_only_if_it_failed_or_was_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rest = Savepoints({}, {"failure-cause": {"class": "x"}}, {"location": "y"}, None)
    serve(monkeypatch, rest)
    job = job_a()
    asked = []
    for _ in range(5):
        job.drain(tmp_path)
        asked.append(len(rest.bodies))
    assert asked == [1, 1, 2, 2, 3]
    assert rest.bodies == [
        {"drain": True, "targetDirectory": (tmp_path / f"drain-{tried}").as_uri(), "formatType": "NATIVE"}
        for tried in range(3)
    ]


def test_drain_is_given_up_after_many_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run that takes over occupies the folders of as many drains."""
    failed = {"failure-cause": {"class": "x"}}
    serve(monkeypatch, Savepoints(*[failed] * MAX_DRAINS))
    job = job_a()
    for _ in range(MAX_DRAINS):
        job.drain(tmp_path)
    with pytest.raises(PipelineFailed, match=r"could not be drained: 32 savepoints in .* failed"):
        job.drain(tmp_path)


class Metrics:
    """A REST service with two operators, which records its requests."""

    def __init__(self, *names: tuple[str, ...]) -> None:
        self.names = names
        self.asked: list[str] = []

    def __call__(self, url: str, method: str = "GET", payload: object = None) -> bytes:
        path, _, query = url.partition("/subtasks/metrics?get=")
        if query:
            self.asked.append(query)
            names = unquote(query).split(",")
            return json.dumps([{"id": name, "sum": len(name), "min": 0, "max": 1} for name in names]).encode()
        if not url.endswith("/metrics"):
            vertices = [{"id": str(at)} for at in range(len(self.names))]
            # A chain, in the order of the names.
            nodes = [{**each, "inputs": vertices[max(at - 1, 0) : at]} for at, each in enumerate(vertices)]
            return json.dumps({"vertices": vertices, "plan": {"nodes": nodes}}).encode()
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
    job = job_a()
    assert set(job.highest(lambda name: name.endswith("currentOffset"))) == set(long)
    assert len(rest.asked) > 1
    assert max(map(len, rest.asked)) <= module.QUERY_CHARS
    failed = len("".join(commits[:2]))
    in_flight = len("x.forebay.in_flight")
    held_back_ms = len("accumulateBackPressuredTimeMs")
    assert job.counts() == {
        "in_flight": in_flight,
        "held_back_ms": held_back_ms,
        "source_held_back_ms": 0,
        "failedCommittables": failed,
    }


def test_records_read_by_the_source_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ("records_read___stream_key_by_map_operator.numRecordsOut", "records_read.forebay.read_ratio")
    others = (
        "numRecordsOut",
        "infer.numRecordsOut",
        "records_reader.numRecordsOut",
        "x.numRecordsOutPerSecond",
    )
    serve(monkeypatch, Metrics((*source, *others), ("x.forebay.in_flight", "x.forebay.replicas")))
    counts = job_a().counts()
    assert (counts["read"], counts["read_ratio"], counts["replicas"]) == (len(source[0]), 1, 0)


KEYED = "records_read__infer__key___stream_key_by_map_operator"


@pytest.mark.parametrize("order", [1, -1])
def test_empty_records_for_shards_do_not_count_as_read(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    names = (f"{KEYED}.numRecordsOut", f"{KEYED}.{SHARD_MARKS}")
    serve(monkeypatch, Metrics(names[::order], (f"infer__key.{SHARD_MARKS}", "x.forebay.in_flight")))
    assert job_a().counts()["read"] == len(names[0]) - len(names[1])


def test_records_read_are_not_known_before_the_empty_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("x.forebay.in_flight", f"{KEYED}.numRecordsOut", f"{KEYED}.{SHARD_MARKS}")
    rest, clock = Metrics(names[:2]), ManualClock()
    serve(monkeypatch, rest)
    job = job_a(clock)
    clock.advance(module.YOUNG_S)
    assert "read" not in job.counts()
    rest.names = (names,)
    assert job.counts()["read"] == len(names[1]) - len(names[2])


def test_values_of_subtasks_and_operators_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = ("x.forebay.dead_letters_total", "x.forebay.failures.cause.late.total")
    serve(monkeypatch, Metrics((*letters, "x.forebay.in_flight"), letters))
    counts = job_a().counts()
    assert [counts["dead_letters"], counts["failures_late"]] == [2 * len(name) for name in letters]


def test_new_cause_of_dead_letters_is_counted_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    letters, late = "x.forebay.dead_letters_total", "x.forebay.failures.cause.late.total"
    rest, clock = Metrics((letters, "x.forebay.in_flight")), ManualClock()
    serve(monkeypatch, rest)
    job = job_a(clock)
    clock.advance(module.YOUNG_S)
    job.counts()
    rest.names = ((letters, "x.forebay.in_flight", late),)
    assert job.counts()["failures_late"] == len(late)


def test_backpressure_time_covers_the_operator_and_earlier_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "accumulateBackPressuredTimeMs"
    operator = ("x.forebay.in_flight",)
    for chain, held_back_ms in (
        (((name,), ("y",), operator), 1),
        ((operator, (name,)), 0),
        ((("y",), operator, ("y",), (name,)), 0),
    ):
        serve(monkeypatch, Metrics(*chain))
        counts = job_a().counts()
        assert (counts["held_back_ms"], counts["source_held_back_ms"]) == (0, held_back_ms)


def test_task_managers_are_polled_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = [], ManualClock()

    def ask(url: str, *more: Any) -> bytes:
        asked.append(url)
        return json.dumps({"taskmanagers": len(asked)}).encode()

    serve(monkeypatch, ask)
    job, told = job_a(clock), []
    for _ in range(9):
        told.append(job.task_managers())
        clock.advance(0.5)
    assert told == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert set(asked) == {"http://flink/overview"}


def test_checkpoint_numbers_skip_savepoints_that_commit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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
    job = job_a()
    assert job.checkpoints() == Checkpoints(
        3, 1, ((10, 1), (20, 2)), newest=5, newest_done=2, newest_clear=1, restored=2
    )


def test_long_metric_name_gets_its_own_request() -> None:
    assert list(module.queries(["a" * 5000, "b", "c"])) == ["a" * 5000, "b,c"]
    assert list(module.queries([])) == []


def test_metric_names_are_listed_often_at_first_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    rest, clock, listed = Metrics(("a.forebay.results_total",)), ManualClock(), []

    def ask(url: str, *more: Any) -> bytes:
        listed.extend([clock.monotonic_s()] if url.endswith("/subtasks/metrics") else [])
        return rest(url, *more)

    serve(monkeypatch, ask)
    job, begun_s = job_a(clock), clock.monotonic_s()
    for _ in range(160):
        assert job.counts()["results"] > 0
        clock.advance(0.5)
    assert [at_s - begun_s for at_s in listed] == [*(n / 2 for n in range(40)), 49.5, 79.5]
    rest.names = (("a.forebay.results_total", "a.forebay.in_flight"),)
    clock.advance(30.0)
    assert "in_flight" in job.counts(), "one that came later is found"
    assert set(job.highest(lambda name: name.endswith("flight"))) == {"a.forebay.in_flight"}


JAVA = """org.apache.flink.runtime.JobException: Recovery is suppressed
	at org.apache.flink.runtime.executiongraph.Handler.handleFailure(Handler.java:180)
	at java.base/java.lang.Thread.run(Thread.java:1583)
Caused by: java.lang.RuntimeException: Error received: {told}
	at org.apache.beam.sdk.Client$Inbound.<init>(Client.java:1)
	... 7 more
"""
PYTHON = """Traceback (most recent call last):
  File "/x/y.py", line 3, in process
    at = f(record)
    at (record)
  File "/x/z.py", line 9, in f
    at.now()
ValueError: no time in it"""


def test_last_cause_without_frames_and_package() -> None:
    assert root_cause(JAVA.format(told="no room")) == "RuntimeException: Error received: no room"
    assert root_cause("a.b.C: x\n\tat app//a.b.C$D.lambda$run$0(C.java:1)\n") == "C: x"
    assert root_cause("a.b.C: x\n\t... 7 more") == "C: x"
    assert root_cause("a.b.C: x\n\tat /home/my-jobs/p.refuse(p.py:53)\n") == "C: x"


def test_python_error_is_its_own_line() -> None:
    assert root_cause(JAVA.format(told=PYTHON)) == "ValueError: no time in it"


def test_cause_is_bounded() -> None:
    assert len(root_cause("x" * 10_000)) == MAX_CAUSE_CHARS + 1


class FromJava(Py4JJavaError):
    """Py4J's exception if the called method raised `told`."""

    def __init__(self, told: str) -> None:
        super().__init__("", SimpleNamespace(_target_id="o1", _gateway_client=None))
        self.told = told

    def __str__(self) -> str:
        return f"An error occurred while calling o94.executeAsync.\n: {self.told}"


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            FromJava(
                "java.lang.IllegalArgumentException: Could not parse value 'soon' for key 'a.b'.\n"
                "\tat a.B.c(B.java:1)\nCaused by: java.lang.NumberFormatException: no number\n\t... 1 more"
            ),
            SettingError,
            "Flink's options: expected another value for a.b, found 'soon'",
        ),
        (
            FromJava(
                "org.apache.flink.util.FlinkException: Failed to execute job 'x'.\n\tat a.B.c(B.java:1)\n"
                "Caused by: java.net.ConnectException: refused\n\tat a.B.c(B.java:1)"
            ),
            PipelineFailed,
            "Flink refused the job: ConnectException: refused",
        ),
        (
            FromJava("a.b.IllegalConfigurationException: slots: 0\n\tat a.B.c(B.java:1)"),
            PipelineFailed,
            "Flink refused the job: IllegalConfigurationException: slots: 0",
        ),
        (
            FromJava(
                "org.apache.flink.util.FlinkException: no MiniCluster\n\tat a.B.c(B.java:1)\n"
                "Caused by: java.net.UnknownHostException: laptop: Name or service not known\n\t... 1 more"
            ),
            SettingError,
            "Flink needs an address for the name of this machine, and 'laptop' has none: add the line "
            "`127.0.0.1 laptop` to /etc/hosts",
        ),
        (
            FromJava(
                "java.net.UnknownHostException: broker: Name or service not known\n\tat a.B.c(B.java:1)"
            ),
            PipelineFailed,
            "Flink refused the job: UnknownHostException: broker: Name or service not known",
        ),
        (
            FromJava("java.lang.OutOfMemoryError: unable to create native thread: x\n\tat a.B.c(B.java:1)"),
            PipelineFailed,
            "Flink refused the job: OutOfMemoryError: unable to create native thread: x; allow more threads "
            r"\(`ulimit -u`, or `pids.max` of the container\)",
        ),
        (Py4JError("gone"), JvmGone, r"the JVM that was to run the job is gone \(Py4JError\)"),
    ],
)
def test_rejected_job_is_one_sentence(
    error: Exception, kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")

    def execute_async(name: str) -> Any:
        raise error

    with pytest.raises(kind, match=f"^{says}$"):
        submit(SimpleNamespace(execute_async=execute_async), "x", FlinkRest("http://flink"))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, ""),
        (
            FromJava(
                "java.util.concurrent.ExecutionException: Job failed\n\tat a.B.c(B.java:1)\n"
                "Caused by: java.net.ConnectException: refused\n\tat a.B.c(B.java:1)"
            ),
            "ConnectException: refused",
        ),
        (Py4JError("gone"), "the JVM that ran the job is gone (Py4JError)"),
        (ConnectionResetError(), "the JVM that ran the job is gone (ConnectionResetError)"),
    ],
)
def test_await_end_returns_the_cause(error: Exception | None, says: str) -> None:
    def result() -> None:
        if error is not None:
            raise error

    client = SimpleNamespace(
        get_job_id=lambda: "a", get_job_execution_result=lambda: SimpleNamespace(result=result)
    )
    assert RunningJob(client, FlinkRest("http://flink")).await_end() == says
