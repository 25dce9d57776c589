"""Feeds alone, against local servers that speak their protocols and drop connections."""

from __future__ import annotations

import asyncio
import logging
import pickle
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from benchmarks.feeds import Drops, FeedServer, serve
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from forebay.connectors.feeds import sse
from forebay.connectors.feeds.feed import (
    RECENT,
    Backoff,
    Feed,
    FeedBroken,
    FeedRefused,
    Headers,
    Mark,
    Received,
    _is_upgrade,
    connected_for_ever,
    digest_of,
)
from forebay.connectors.feeds.jetstream import JetstreamFeed
from forebay.connectors.feeds.sse import SseFeed
from forebay.settings import SecretRef

FAST = Backoff(0.001, 0.01)
RECORDS = [{"n": n, "text": "é" * (n % 40), "more": [n]} for n in range(300)]


async def collect(feed: Feed, count: int, cursor: str | None = None) -> list[Received]:
    async def read() -> list[Received]:
        received = []
        records = feed.read(cursor)
        async for record in records:
            received.append(record)
            if len(received) == count:
                break
        await records.aclose()
        return received

    return await asyncio.wait_for(read(), 180)


async def until_connected(server: FeedServer, times: int) -> None:
    for _ in range(18_000):
        if len(server.cursors) >= times:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the feed did not connect again")


@pytest.mark.heavy
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_server_sent_events_are_read_once_and_in_order(seed: int, inclusive: bool) -> None:
    with serve(FeedServer(RECORDS, Drops(seed, every=15), inclusive=inclusive)) as server:
        received = await collect(SseFeed(server.events_url, backoff=FAST), len(RECORDS))
        assert len(server.cursors) > 5
        assert [record.raw for record in received] == [server.event(n) for n in range(len(RECORDS))]
    assert [orjson.loads(record.raw) for record in received] == RECORDS
    assert len({record.position for record in received}) == len(RECORDS)


@pytest.mark.heavy
@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_jetstream_messages_are_read_once_and_in_order(seed: int, inclusive: bool) -> None:
    with serve(FeedServer(RECORDS, Drops(seed, every=15), inclusive=inclusive)) as server:
        received = await collect(JetstreamFeed(server.subscribe_url, backoff=FAST), len(RECORDS))
        assert len(server.cursors) > 5
        assert [record.raw for record in received] == [server.message(n) for n in range(len(RECORDS))]
    assert len({record.position for record in received}) == len(RECORDS)


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("kind", ["sse", "jetstream"])
async def test_a_new_reader_continues_after_the_cursor(kind: str, inclusive: bool) -> None:
    with serve(FeedServer(RECORDS, inclusive=inclusive)) as server:
        feed = SseFeed(server.events_url) if kind == "sse" else JetstreamFeed(server.subscribe_url)
        first = await collect(feed, 120)
        rest = await collect(feed, 180, str(first[-1].cursor))
        assert server.cursors[0] is None
        assert server.cursors[1] is not None
    assert [orjson.loads(record.raw)["n"] for record in first + rest] == list(range(300))


async def test_jetstream_messages_without_a_time_are_passed_on() -> None:
    server = FeedServer(RECORDS[:3])
    server.message = lambda n: [b"garbage", b"[]", b'{"time_us": "x"}'][n]  # type: ignore[method-assign]
    with serve(server):
        received = await collect(JetstreamFeed(server.subscribe_url), 3)
    assert [record.raw for record in received] == [b"garbage", b"[]", b'{"time_us": "x"}']


class Answering(FeedServer):
    """Answers connections with `statuses` in turn, then with the last; 200 is a complete feed. `kind`: the
    content type."""

    statuses: tuple[int, ...] = (200,)
    kind = "text/event-stream"

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, super()._events)

    async def _subscribe(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, super()._subscribe)

    async def _answer(self, request: web.Request, serve: Any) -> web.StreamResponse:
        status = self.statuses[min(len(self.cursors), len(self.statuses) - 1)]
        if status == 200 and self.kind == "text/event-stream":
            return await serve(request)
        self.cursors.append(None)
        return web.Response(status=status, text="data: no\n\n", content_type=self.kind)


KINDS = {
    "sse": lambda server: SseFeed(server.events_url + "?key=hunter2", backoff=FAST),
    "jetstream": lambda server: JetstreamFeed(server.subscribe_url + "?key=hunter2", backoff=FAST),
}


@pytest.mark.parametrize("status", [400, 401, 403, 404])
@pytest.mark.parametrize("kind", KINDS)
async def test_feed_rejected_before_its_first_record_raises(kind: str, status: int) -> None:
    server = Answering(RECORDS)
    server.statuses = (status,)
    told = rf"{kind}:127.0.0.1: the server answered {status}; check"
    with serve(server), pytest.raises(FeedRefused, match=told) as info:
        await collect(KINDS[kind](server), 1)
    assert "hunter" not in str(info.value)
    assert len(server.cursors) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
async def test_transient_answers_are_not_a_rejection(kind: str) -> None:
    server = Answering(RECORDS[:1])
    server.statuses = (408, 425, 429, 500, 503, 200)
    with serve(server):
        assert len(await collect(KINDS[kind](server), 1)) == 1


async def test_rejected_feed_is_retried_if_it_has_delivered() -> None:
    outcomes = iter(["one", "refused", "one"])

    async def once() -> AsyncIterator[Received]:
        if next(outcomes) == "refused":
            raise FeedRefused("the server answered 404")
        yield Received("c", b"r", "p")

    async def sleep(delay_s: float) -> None:
        pass

    records = connected_for_ever("feed", once, backoff=lambda: FAST, sleep=sleep)
    assert [(await records.__anext__()).raw for _ in range(2)] == [b"r", b"r"]


async def test_page_that_is_not_an_event_stream_is_rejected() -> None:
    server = Answering(RECORDS)
    server.kind = "text/html"
    with serve(server), pytest.raises(FeedRefused, match="answered with text/html, not text/event-stream"):
        await collect(SseFeed(server.events_url, backoff=FAST), 1)


async def test_invalid_address_is_rejected() -> None:
    with pytest.raises(FeedRefused, match="not a URL"):
        await collect(SseFeed("http://", backoff=FAST), 1)


class SomeWithoutId(FeedServer):
    """Ends each connection after one event; every second one has no id, the last one an empty one."""

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/stream", self._one)
        return app

    async def _one(self, request: web.Request) -> web.Response:
        self.cursors.append(request.headers.get("Last-Event-ID"))
        texts = ["id: 1\ndata: a\n\n", "data: b\n\n", "data: c\n\n", "id:\ndata: d\n\n"]
        number = min(len(self.cursors) - 1, len(texts))
        return web.Response(text=(*texts, "data: e\n\n")[number], content_type="text/event-stream")


async def test_last_event_id_is_sent_until_the_server_resets_it() -> None:
    with serve(SomeWithoutId([])) as server:
        received = await collect(SseFeed(server.events_url, backoff=FAST), 5)
    assert [record.raw for record in received] == [b"a", b"b", b"c", b"d", b"e"]
    assert server.cursors[:5] == [None, "1", "1", "1", None]


class NoEvents(SomeWithoutId):
    """Sends a delay and an id without an event, then an event on the next connection."""

    async def _one(self, request: web.Request) -> web.Response:
        self.cursors.append(request.headers.get("Last-Event-ID"))
        texts = ["retry: 7\nid: 4\n\n", "event: edit\nid: 5\ndata: a\n\n", "data: b\n\n"]
        return web.Response(text=texts[min(len(self.cursors), 3) - 1], content_type="text/event-stream")


async def test_a_delay_and_an_id_count_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    wished: list[float | None] = []

    def with_retry(backoff: Backoff, retry_s: float | None) -> Backoff:
        wished.append(retry_s)
        return FAST

    monkeypatch.setattr(sse, "_with_retry", with_retry)
    with serve(NoEvents([])) as server:
        received = await collect(SseFeed(server.events_url), 2)
    assert wished == [0.007, 0.007]
    assert server.cursors == [None, "4", "5"]
    assert [record.fields for record in received] == [
        {"sse": {"event": "edit", "id": "5"}},
        {"sse": {"event": "message", "id": "5"}},
    ]
    assert [record.headers for record in received] == [
        {"sse-event": b"edit", "sse-id": b"5"},
        {"sse-event": b"message", "sse-id": b"5"},
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["sse", "jetstream"])
async def test_silent_connection_is_reopened(kind: str) -> None:
    with serve(FeedServer(RECORDS[:5])) as server:
        feed: Feed = SseFeed(server.events_url, silence_s=0.05, backoff=FAST)
        if kind == "jetstream":
            feed = JetstreamFeed(server.subscribe_url, silence_s=0.4, backoff=FAST)
        records = feed.read(None)
        for _ in range(5):
            await records.__anext__()
        waiting = asyncio.ensure_future(records.__anext__())
        await until_connected(server, 3)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await records.aclose()


async def test_oversized_message_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    with serve(FeedServer([{"n": "x" * 5000}])) as server:
        feed = JetstreamFeed(server.subscribe_url, max_message_bytes=1000, backoff=FAST)
        records = feed.read(None)
        waiting = asyncio.ensure_future(records.__anext__())
        await until_connected(server, 3)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await records.aclose()
    assert len(caplog.records) == 1


async def test_one_warning_per_outage_and_growing_delays(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outcomes = iter(["down", "down", "down", "one", "down", "one"])
    slept: list[float] = []

    async def once() -> AsyncIterator[Received]:
        if next(outcomes) == "down":
            raise FeedBroken("refused")
        yield Received("c", b"r", "p")

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    records = connected_for_ever("feed", once, backoff=lambda: Backoff(1.0, 3.0), sleep=sleep)
    assert [(await records.__anext__()).raw for _ in range(2)] == [b"r", b"r"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING", "INFO"]
    tops = [1, 2, 3, 1, 2]
    assert all(top / 2 <= delay_s <= top for top, delay_s in zip(tops, slept, strict=True))


@given(st.integers(1, 10_000), st.integers())
def test_delays_stay_within_bounds(failures: int, seed: int) -> None:
    assert 0.25 <= Backoff(0.5, 30).delay_s(failures, random.Random(seed)) <= 30


@given(st.none() | st.text(), st.lists(st.binary(), max_size=2 * RECENT))
def test_cursor_survives_as_text(at: str | None, records: list[bytes]) -> None:
    mark = Mark()
    for record in records:
        mark.advance(at, digest_of(record))
    again = Mark.of(str(mark))
    assert again.at == mark.at
    assert list(again.recent) == list(mark.recent)
    assert all(again.has(digest_of(record)) for record in records[-RECENT:])


def test_digests_distinguish_parts() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")


@pytest.mark.heavy
async def test_feed_secrets_are_sent_but_never_shown(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEED_TOKEN", "hunter2")
    server = FeedServer(RECORDS[:1], Drops(0, refuse=0.9))
    with serve(server):
        headers = {"Authorization": SecretRef(env="FEED_TOKEN")}
        for feed in (
            SseFeed(f"{server.events_url}?key=hunter3", headers, backoff=FAST),
            JetstreamFeed(f"{server.subscribe_url}?key=hunter3", headers=headers, backoff=FAST),
        ):
            received = await collect(feed, 1)
            assert "hunter" not in feed.name + str(received)
            assert "hunter2" not in repr(feed)
            assert b"hunter2" not in pickle.dumps(feed)
    assert set(server.authorizations) == {"hunter2"}
    assert len(caplog.records) >= 2
    assert "hunter" not in caplog.text


FEEDS: dict[str, Callable[[str, Headers], Feed]] = {
    "sse": lambda url, headers: SseFeed(url, headers=headers),
    "websocket": lambda url, headers: JetstreamFeed(url, headers=headers),
}


@asynccontextmanager
async def serving(handler: Callable[[web.Request], object]) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/{rest:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    finally:
        await runner.cleanup()


async def records(request: web.Request) -> web.StreamResponse:
    """One record, in the format of either feed."""
    if request.headers.get("Upgrade", "").lower() == "websocket":
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str('{"time_us": 1}')
        return socket
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(request)
    await stream.write(b'id: 1\ndata: {"time_us": 1}\n\n')
    return stream


async def first(feed: Feed) -> bytes:
    reading = feed.read(None)
    try:
        return (await asyncio.wait_for(anext(reading), 30)).raw
    finally:
        await reading.aclose()  # type: ignore[attr-defined]


@pytest.fixture
def secret(tmp_path: Path) -> Headers:
    (tmp_path / "key").write_text("sesame")
    return {"X-Api-Key": SecretRef(file=str(tmp_path / "key"))}


@pytest.mark.parametrize("kind", FEEDS)
@pytest.mark.parametrize("hops", [1, 2])
async def test_headers_do_not_follow_a_redirect_to_another_origin(
    kind: str, hops: int, secret: Headers
) -> None:
    stolen: list[str | None] = []

    async def thief(request: web.Request) -> web.StreamResponse:
        # The port may have been another test's, whose client still asks for it.
        if request.path == "/feed":
            stolen.append(request.headers.get("X-Api-Key"))
        return await records(request)

    async with serving(thief) as other:

        async def redirecting(request: web.Request) -> web.StreamResponse:
            if request.path == "/" and hops == 2:
                raise web.HTTPFound("/next")
            raise web.HTTPTemporaryRedirect(f"{other}/feed?token=t0ken")

        async with serving(redirecting) as url:
            with pytest.raises(FeedRefused, match="redirects to http:") as caught:
                await first(FEEDS[kind](url, secret))
    assert stolen == []
    assert "sesame" not in str(caught.value)
    assert "t0ken" not in str(caught.value)


@pytest.mark.parametrize("kind", FEEDS)
async def test_headers_follow_a_redirect_within_their_origin(kind: str, secret: Headers) -> None:
    seen: list[str | None] = []

    async def moved(request: web.Request) -> web.StreamResponse:
        if request.path == "/":
            raise web.HTTPFound("/feed")
        seen.append(request.headers.get("X-Api-Key"))
        return await records(request)

    async with serving(moved) as url:
        assert await first(FEEDS[kind](url, secret)) == b'{"time_us": 1}'
    assert seen == ["sesame"]


@pytest.mark.parametrize("kind", FEEDS)
@pytest.mark.parametrize("headers", [{}, {"User-Agent": "me"}])
async def test_feed_does_not_follow_a_redirect_to_another_origin(kind: str, headers: Headers) -> None:
    """Such as an address that only this machine reaches."""
    reached: list[str] = []

    async def internal(request: web.Request) -> web.StreamResponse:
        reached.append(request.path)
        return await records(request)

    async with serving(internal) as other:

        async def redirecting(request: web.Request) -> web.StreamResponse:
            raise web.HTTPMovedPermanently(f"{other}/latest/meta-data")

        async with serving(redirecting) as url:
            with pytest.raises(FeedRefused, match="another origin; set url to the final address"):
                await first(FEEDS[kind](url, headers))
    assert reached == []


def test_same_host_may_be_changed_to_tls() -> None:
    plain = URL("http://feed.example:8080/a")
    assert _is_upgrade(plain, URL("https://feed.example/b"))
    for target in ("https://feed.example:8443/", "https://other.example/", "http://feed.example/"):
        assert not _is_upgrade(plain, URL(target))
    assert not _is_upgrade(URL("https://feed.example/"), URL("http://feed.example/"))
