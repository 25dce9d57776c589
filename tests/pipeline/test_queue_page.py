"""The backlog page, with correct, slow and too many clients."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.errors import LaunchError
from forebay.fleet.autoscale.topic_queue import TopicBacklog, decode_backlog
from forebay.pipeline import queue_page
from forebay.pipeline.queue_page import MOST_AT_ONCE, MOST_BYTES, page_served, queue_told
from forebay.pipeline.watch import LastCount
from forebay.ports import free_port
from forebay.testing import wait_until

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
    monkeypatch.setattr(queue_page, "TRY_S", 0.01)
    tries, listening = [], queue_page._listening

    def counted(port: int) -> socket.socket | OSError:
        tries.append(port)
        return listening(port)

    port, other = free_port(), TopicBacklog(1, None, None, 0.0)
    with ExitStack() as first:
        first.enter_context(page_served(port, lambda: BACKLOG))
        monkeypatch.setattr(queue_page, "_listening", counted)
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
        monkeypatch.setattr(queue_page, "ASKED_S", 0.05)
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
    monkeypatch.setattr(queue_page, "LOOK_S", 0.01)
    job: Any = Counted(None)
    waiting, port, seen = LastCount(ManualClock()), free_port(), list[int]()
    looked = queue_told(job, waiting, port, one_each=True, looked=lambda now: seen.append(now.results))
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
    monkeypatch.setattr(queue_page, "LOOK_S", 0.01)
    job: Any = Counted(TypeError("'NoneType' object is not subscriptable"))
    waiting, port = LastCount(ManualClock()), free_port()
    waiting.set(30)
    with queue_told(job, waiting, port, one_each=True, looked=lambda _: None):
        wait_until(lambda: "'NoneType' object is not subscriptable" in caplog.text)
        job.answer = {"accepted": 10.0, "results": 10.0, "prompt_tokens": 500.0, "completion_tokens": 100.0}
        wait_until(lambda: told(port) == TopicBacklog(30, 1500, 300, 0.0))


def test_too_long_request_is_not_answered(port: int) -> None:
    with asking(port, b"GET / HTTP/1.1\r\nx: " + b"x" * (2 * MOST_BYTES)) as long:
        assert received(long) == b""
    assert told(port) == BACKLOG


def test_excess_requests_are_dropped(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_page, "ASKED_S", 600.0)
    with ExitStack() as stack:
        for _ in range(MOST_AT_ONCE):
            stack.enter_context(asking(port, b"GET"))

        def refused() -> bool:
            """Whether another request is dropped immediately, not only after its time-out."""
            with asking(port, b"GET / HTTP/1.1\r\n\r\n") as one:
                return received(one) == b""

        wait_until(refused)
    wait_until(lambda: _tells(port, BACKLOG))


def _tells(port: int, backlog: TopicBacklog) -> bool:
    try:
        return told(port) == backlog
    except OSError:
        return False
