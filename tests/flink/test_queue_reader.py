"""A subtask reads its topics' backlog over HTTP, from a correct server and from broken ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.harness.clock import ManualClock

from forebay.fleet.autoscale.base import Tokens
from forebay.fleet.autoscale.meter import COUNTED_S, TopicBacklog, TopicQueue, encode_backlog
from forebay.flink.queue_reader import PATIENCE_S, QueueReader

BACKLOG = encode_backlog(TopicBacklog(10, 300, 40, 0.0))


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)


class Page:
    def __init__(self, answer: bytes, *rest: bytes) -> None:
        self.answer = answer
        self._rest = rest
        self.asked = 0

    @asynccontextmanager
    async def read(self, clock: ManualClock) -> AsyncIterator[TopicQueue]:
        """A reader's backlog from this server."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        queue = TopicQueue(50.0)
        port = server.sockets[0].getsockname()[1]
        reader = QueueReader(f"http://127.0.0.1:{port}/", queue, clock, every_s=0.01)
        try:
            await self.again()
            yield queue
        finally:
            await reader.close()
            server.close()

    async def again(self) -> None:
        """Return after two more requests: the answer to the first one has been processed."""
        until = self.asked + 2
        while self.asked < until:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(self.answer)
        for part in self._rest:
            await writer.drain()
            # The one who reads has taken what came before.
            await asyncio.sleep(0.01)
            writer.write(part)
        writer.close()


async def test_reported_backlog_counts_until_it_is_too_old() -> None:
    clock, page = ManualClock(), Page(ok(BACKLOG))
    async with page.read(clock) as queue:
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)
        page.answer = ok(b"null")
        await page.again()
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)
        clock.advance(COUNTED_S + 1)
        assert queue.waits(clock.monotonic_s()) is None
        page.answer = ok(BACKLOG)
        await page.again()
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)


async def test_answer_in_parts_is_read_whole() -> None:
    """As through a proxy."""
    whole = ok(BACKLOG)
    clock, page = ManualClock(), Page(whole[:-20], whole[-20:-10], whole[-10:])
    async with page.read(clock) as queue:
        assert queue.waits(clock.monotonic_s()) == Tokens(10, 300, 40)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ok(b"null"), "the backlog is not known yet"),
        (ok(b"<html>"), "expected a backlog, found something else"),
        (ok(b'{"records": -5}'), "expected a backlog, found something else"),
        (ok(b" " * 100_000 + BACKLOG), "sent an answer of more than 4096 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "found 302"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "found 500"),
        (b"no HTTP\r\n\r\n", "did not speak HTTP"),
        (b"", "closed the connection before it answered"),
    ],
    ids=["null", "html", "negative", "long", "redirect", "500", "no http", "nothing"],
)
async def test_other_answers_are_unknown_and_logged_if_they_persist(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, page = ManualClock(), Page(answer)
    with caplog.at_level(logging.WARNING):
        async with page.read(clock) as queue:
            assert queue.waits(clock.monotonic_s()) is None
            assert not caplog.records
            clock.advance(PATIENCE_S)
            await page.again()
            await page.again()
            assert queue.waits(clock.monotonic_s()) is None
    (told,) = [record.message for record in caplog.records]
    assert "scaling uses only the job's own" in told
    assert why in told
