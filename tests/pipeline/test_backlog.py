"""The backlog: its count, its estimated cost, and its page, with correct, slow and too many clients."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused
from forebay.errors import LaunchError
from forebay.fleet.autoscale.meter import TopicBacklog, decode_backlog
from forebay.pipeline import backlog as module
from forebay.pipeline.backlog import (
    MAX_AT_ONCE,
    MAX_BYTES,
    LastCount,
    Spent,
    backlog_served,
    estimate,
    lag_watched,
    page_served,
)
from forebay.pipeline.load import parse_spec
from forebay.pipeline.snapshot import Snapshot
from forebay.ports import free_port
from forebay.testing import wait_until

NOW = Snapshot(1.0, "RUNNING", results=8, dead_letters=2, prompt_tokens=500, completion_tokens=100)
COUNTS = st.integers(0, 10**9)
BACKLOG = TopicBacklog(10, 300, 40, 0.5)


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a page that serves `BACKLOG`."""
    port = free_port()
    with page_served(port, lambda: BACKLOG):
        yield port


def told(port: int) -> TopicBacklog | None:
    with urllib.request.urlopen(f"http://localhost:{port}/", timeout=60) as answer:
        return decode_backlog(answer.read())


@contextmanager
def asking(port: int, words: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("localhost", port), timeout=60) as connection:
        connection.sendall(words)
        yield connection


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_page_returns_the_current_backlog() -> None:
    backlog: TopicBacklog | None = None
    port = free_port()
    with page_served(port, lambda: backlog):
        assert told(port) is None
        backlog = BACKLOG
        assert told(port) == BACKLOG
    with pytest.raises(OSError, match="refused"):
        told(port)


def test_taken_port_is_logged_once_and_used_once_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TRY_S", 0.01)
    tries, listening = [], module._listening

    def counted(port: int) -> socket.socket | OSError:
        tries.append(port)
        return listening(port)

    port, other = free_port(), TopicBacklog(1, None, None, 0.0)
    with ExitStack() as first:
        first.enter_context(page_served(port, lambda: BACKLOG))
        monkeypatch.setattr(module, "_listening", counted)
        with page_served(port, lambda: other):
            wait_until(lambda: len(tries) > 3)
            assert told(port) == BACKLOG
            first.close()
            wait_until(lambda: _tells(port, other))
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert f"cannot open port {port}, which serves the backlog" in record.message


def test_taken_port_does_not_delay_the_end(port: int) -> None:
    with page_served(port, lambda: None):
        pass
    assert told(port) == BACKLOG


def test_incomplete_requests_are_dropped_and_block_nobody(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with asking(port, b"GET / HT") as slow:
        assert told(port) == BACKLOG
        slow.settimeout(60)
        monkeypatch.setattr(module, "ASKED_S", 0.05)
        with asking(port, b"GET / HT") as other:
            assert other.recv(100) == b""


class Counted:
    """A job with these counts; None: Flink does not answer."""

    def __init__(self, counts: dict[str, float] | Exception | None) -> None:
        self.answer = counts

    def counts(self) -> dict[str, float]:
        if self.answer is None:
            raise LaunchError("Flink does not answer")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_backlog_costs_as_much_as_earlier_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    job: Any = Counted(None)
    waiting, port, seen = LastCount(ManualClock()), free_port(), list[int]()
    looked = backlog_served(job, waiting, port, one_each=True, looked=lambda now: seen.append(now.results))
    with looked:
        assert told(port) is None
        waiting.set(30)
        assert told(port) == TopicBacklog(30, None, None, 0.0)
        job.answer = {"accepted": 10.0, "results": 9.0, "dead_letters": 1.0, "prompt_tokens": 500.0}
        job.answer["completion_tokens"] = 100.0
        wait_until(lambda: told(port) == TopicBacklog(30, 1500, 300, 0.0))
        job.answer = None
        assert told(port) == TopicBacklog(30, 1500, 300, 0.0)
    assert set(seen) == {9}, "each look at the job is passed on unchanged"


def test_unexpected_answer_of_flink_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    job: Any = Counted(TypeError("'NoneType' object is not subscriptable"))
    waiting, port = LastCount(ManualClock()), free_port()
    waiting.set(30)
    with backlog_served(job, waiting, port, one_each=True, looked=lambda _: None):
        wait_until(lambda: "'NoneType' object is not subscriptable" in caplog.text)
        job.answer = {"accepted": 10.0, "results": 10.0, "prompt_tokens": 500.0, "completion_tokens": 100.0}
        wait_until(lambda: told(port) == TopicBacklog(30, 1500, 300, 0.0))


def test_too_long_request_is_not_answered(port: int) -> None:
    with asking(port, b"GET / HTTP/1.1\r\nx: " + b"x" * (2 * MAX_BYTES)) as long:
        assert received(long) == b""
    assert told(port) == BACKLOG


def test_slow_requests_do_not_block_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_S", 600.0)
    with ExitStack() as stack:
        slow = [stack.enter_context(asking(port, b"GET")) for _ in range(2 * MAX_AT_ONCE)]
        for one in slow[:MAX_AT_ONCE]:
            assert received(one) == b""
        assert told(port) == BACKLOG


def _tells(port: int, backlog: TopicBacklog) -> bool:
    try:
        return told(port) == backlog
    except OSError:
        return False


@pytest.mark.parametrize(
    ("records", "spent", "tokens"),
    [
        (200, Spent(10, 500, 120), (10_000, 2400)),
        (1, Spent(3, 10, 11), (3, 4)),
        (0, Spent(10, 500, 120), (0, 0)),
        (5, Spent(10, 0, 0), (0, 0)),
        (200, Spent(0, 0, 0), (None, None)),
        (200, Spent(0, 500, 120), (None, None)),
    ],
)
def test_backlog_costs_like_earlier_records(
    records: int, spent: Spent, tokens: tuple[int | None, int | None]
) -> None:
    assert estimate(records, spent, 1.5) == TopicBacklog(records, *tokens, age_s=1.5)


@given(records=COUNTS, done=st.integers(1, 10**9), prompt=COUNTS, completion=COUNTS)
def test_estimate_is_within_half_a_token_of_the_formula(
    records: int, done: int, prompt: int, completion: int
) -> None:
    found = estimate(records, Spent(done, prompt, completion))
    assert found.prompt_tokens is not None
    assert found.completion_tokens is not None
    # Whole numbers, where floats have run out of digits.
    slack = done + records * prompt // 10**14 * done
    assert abs(2 * (found.prompt_tokens * done - records * prompt)) <= slack
    slack = done + records * completion // 10**14 * done
    assert abs(2 * (found.completion_tokens * done - records * completion)) <= slack


def test_count_ages_and_keeps_its_records() -> None:
    clock = ManualClock()
    last = LastCount(clock)
    assert last.backlog(NOW) is None
    last.set(30)
    clock.advance(7.0)
    assert last.backlog(NOW) == TopicBacklog(30, 1500, 300, 7.0)
    last.set(20)
    assert last.backlog(NOW) == TopicBacklog(20, 1000, 200, 0.0)


def test_restarted_job_is_estimated_by_its_earlier_cost() -> None:
    last = LastCount(ManualClock())
    last.set(30)
    assert last.backlog(Snapshot(0.0, "CREATED")) == TopicBacklog(30, None, None, 0.0)
    last.backlog(NOW)
    assert last.backlog(Snapshot(2.0, "RESTARTING")) == TopicBacklog(30, 1500, 300, 0.0)


@pytest.mark.parametrize(
    ("application", "backlog"),
    [
        # A result stands for many records: they are through once their calls are.
        ({"type": "sessions"}, TopicBacklog(30, 150, 30, 0.0)),
        # It asks about what it finds: all that it asked, over all that was read.
        ({"type": "trends"}, TopicBacklog(30, 60, 12, 0.0)),
    ],
)
def test_application_results_do_not_count_as_records(
    application: dict[str, Any], backlog: TopicBacklog
) -> None:
    document = {
        "name": "p",
        "source": {"type": "sse", "url": "http://127.0.0.1:1/e", "time": "t"},
        "key": "{{ user }}",
        "application": application,
        "sink": {"type": "jsonl", "path": "out"},
    }
    now = replace(NOW, accepted=115, in_flight=10, pending=5, dead_letters=0)
    job: Any = None
    with lag_watched(parse_spec(document), job, restored=False, clock=ManualClock()) as last:
        last.set(30, read=250)
        # What was taken in has cost nothing until the first answer.
        assert last.backlog(replace(now, prompt_tokens=0, completion_tokens=0)) == TopicBacklog(
            30, None, None, 0.0
        )
        assert last.backlog(now) == backlog


def test_cost_of_topics_and_trends_adds_up_over_restarts() -> None:
    last = LastCount(ManualClock(), None)

    def expected(records: int, read: int, prompt: int, completion: int) -> tuple[int | None, int | None]:
        last.set(records, read)
        found = last.backlog(Snapshot(0.0, "RUNNING", prompt_tokens=prompt, completion_tokens=completion))
        assert found is not None
        assert found.records == records
        return found.prompt_tokens, found.completion_tokens

    assert expected(100, 200, 0, 0) == (None, None)
    assert expected(100, 400, 800, 40) == (200, 10)
    # The job has restarted, and its counts with it: until it has asked again, what it asked before counts.
    assert expected(100, 400, 0, 0) == (200, 10)
    assert expected(100, 500, 200, 10) == (200, 10)
    assert expected(100, 1000, 200, 10) == (100, 5)


def spec(folder: Path, **changes: Any) -> Any:
    access = {"type": "kafka", "bootstrap": "h:1"}
    document = {
        "name": "p",
        "source": {**access, "topics": ["in"]},
        "prompt": "x",
        "sink": {"type": "jsonl", "path": "out"},
    }
    return parse_spec({**document, **changes}, base=folder)


def counting() -> bool:
    return any(thread.name == "counting the backlog" for thread in threading.enumerate())


def test_failed_count_keeps_the_last_one_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unforeseen = TypeError("'NoneType' object is not subscriptable")
    answers: Iterator[Any] = iter([5, KafkaAway("gone"), KafkaRefused("no more"), unforeseen, 3])
    seen: list[tuple[Any, Any]] = []
    begun, over = threading.Event(), threading.Event()

    class Probe:
        read = 0

        def __init__(self, *arguments: object, **more: object) -> None:
            pass

        def count(self, admin: object) -> int:
            begun.wait(60.0)
            answer = next(answers, None)
            if answer is None:
                over.wait(60.0)
                return 99
            if isinstance(answer, Exception):
                seen.append((answer, last.backlog(NOW)))
                raise answer
            return int(answer)

    @contextmanager
    def admin(cluster: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(module, "LagProbe", Probe)
    monkeypatch.setattr(module, "kafka_admin", admin)
    monkeypatch.setattr(module, "COUNT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "END_S", 60.0)
    job: Any = None
    with lag_watched(spec(tmp_path), job, restored=False, clock=ManualClock()) as last:
        begun.set()
        wait_until(lambda: last.backlog(NOW) == TopicBacklog(3, 150, 30, 0.0))
        assert counting()
        over.set()
    assert [backlog for _, backlog in seen] == [TopicBacklog(5, 250, 50, 0.0)] * 3
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [str(unforeseen)]
    assert not counting()


def test_backlog_that_nobody_reads_is_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, looked = [0], threading.Semaphore(0)

    class Probe:
        read = 0

        def __init__(self, *arguments: object, **more: object) -> None:
            pass

        def count(self, admin: object) -> int:
            counts[0] += 1
            return counts[0]

    class Ended(threading.Event):
        def wait(self, timeout_s: float | None = None) -> bool:
            looked.release()
            return super().wait(0.0)

    monkeypatch.setattr(module, "LagProbe", Probe)
    monkeypatch.setattr(module, "kafka_admin", lambda cluster: nullcontext())
    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=Ended, Thread=threading.Thread))
    job: Any = None
    with lag_watched(spec(tmp_path), job, restored=False, if_read=True, clock=ManualClock()) as last:
        for _ in range(9):
            assert looked.acquire(timeout=60.0)
        assert counts == [1]
        assert last.backlog(NOW) is not None
        wait_until(lambda: counts == [2])


def test_other_sources_have_no_backlog(tmp_path: Path) -> None:
    job: Any = None
    files = spec(tmp_path, source={"type": "jsonl", "path": "in.jsonl"})
    with lag_watched(files, job, restored=False) as last:
        assert not counting()
        assert last.backlog(NOW) is None
