"""A feed's headers reach its own origin only, wherever its server redirects to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from yarl import URL

from forebay.connectors.feeds.feed import Feed, FeedRefused, Headers, _is_upgrade
from forebay.connectors.feeds.jetstream import JetstreamFeed
from forebay.connectors.feeds.sse import SseFeed
from forebay.settings import SecretRef

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
