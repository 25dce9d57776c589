"""Only who knows the token gets the page, on this machine; a browser that hangs costs the others nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import aiohttp
import pytest
from aiohttp import web

from forebay.errors import SettingError
from forebay.pipeline.live import server as module
from forebay.pipeline.live.server import BACKLOG, MAX_CONNECTIONS, PageServer


class Parts:
    """A page whose test changes its versions."""

    def __init__(self) -> None:
        self.now = {"results": 1}
        self.searched: list[str] = []
        self.text = "<p>hello</p>"

    def page(self) -> str:
        return "<main>page</main>"

    def versions(self) -> dict[str, int]:
        return dict(self.now)

    def part(self, name: str, search: str) -> str:
        self.searched.append(search)
        return self.text


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def server(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(module, "LAST_S", 0.05)
    with closing(PageServer(parts)) as found:
        found.start()
        yield found


async def answer(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as found:
        return found.status, await found.text(), dict(found.headers)


@pytest.mark.heavy
async def test_page_is_served_with_the_token(server: PageServer, parts: Parts) -> None:
    status, text, headers = await answer(server.url)
    assert (status, text) == (200, "<main>page</main>")
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert not [name for name in headers if name.lower().startswith("access-control-")]
    assert (await answer(f"{server.url}part/results?search=ann"))[:2] == (200, "<p>hello</p>")
    assert parts.searched == ["ann"]


@pytest.mark.parametrize(
    "path", ["", "wrong/", "%ff%00/", "x" * 5000 + "/", "wrong/events", "../../etc/passwd"]
)
async def test_nothing_is_served_without_the_token(server: PageServer, path: str) -> None:
    status, text, headers = await answer(f"http://127.0.0.1:{server.port}/{path}")
    assert status in (400, 404)
    assert "page" not in text
    assert not [name for name in headers if name.lower().startswith("access-control-")]


@pytest.mark.heavy
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:80", "127.0.0.1.evil.example"])
async def test_other_host_name_of_this_machine_is_rejected(server: PageServer, host: str) -> None:
    assert (await answer(server.url, Host=host))[0] == 404
    assert (await answer(server.url, Host=f"localhost:{server.port}"))[0] == 200


async def test_unknown_paths_and_methods_are_rejected(server: PageServer) -> None:
    assert (await answer(f"{server.url}part/nothing"))[0] == 404
    async with aiohttp.ClientSession() as session, session.post(server.url, data=b"x") as found:
        assert found.status == 404


async def test_long_searches_are_cut(server: PageServer, parts: Parts) -> None:
    await answer(f"{server.url}part/results?search={'x' * 4000}")
    assert parts.searched == ["x" * module.MAX_SEARCH_CHARS]


async def versions(found: aiohttp.ClientResponse) -> dict[str, int] | None:
    """The next event; None for the end."""
    async for line in found.content:
        if line.startswith(b"event: end"):
            return None
        if line.startswith(b"data: "):
            values: dict[str, int] = json.loads(line[6:])
            return values
    return None


@pytest.mark.heavy
async def test_changes_and_the_end_are_sent_as_events(server: PageServer, parts: Parts) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}events") as found:
        assert found.headers["Content-Type"] == "text/event-stream"
        assert await versions(found) == {"results": 1}
        parts.now = {"results": 2}
        assert await versions(found) == {"results": 2}
        parts.now = {"results": 3}
        closed = asyncio.get_running_loop().run_in_executor(None, server.close)
        assert await versions(found) == {"results": 3}
        assert await versions(found) is None
        await closed


async def test_server_stops_once_browsers_have_left(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_S", 600.0)
    server = PageServer(parts)
    server.start()
    async with aiohttp.ClientSession() as session, session.get(server.url + "events") as events:
        assert await versions(events) is not None
        closed = asyncio.get_running_loop().run_in_executor(None, server.close)
        async for line in events.content:
            if line.startswith(b"event: end"):
                break
        events.close()
        await asyncio.wait_for(closed, 60)


async def test_browser_that_just_loaded_the_page_gets_the_end(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_S", 600.0)
    async with aiohttp.ClientSession() as session, session.get(server.url) as page:
        await page.read()
    closed = asyncio.get_running_loop().run_in_executor(None, server.close)
    # One that does not wait has stopped to listen by then.
    await asyncio.wait({closed}, timeout=0.2)
    async with aiohttp.ClientSession() as session:
        async with session.get(server.url + "events") as events:
            text = await events.content.readuntil(b"event: end")
        assert text.startswith(b"data: ")
        await closed


@pytest.mark.heavy
async def test_hanging_browser_is_dropped_and_others_continue(
    server: PageServer, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_S", 0.2)
    parts.text = "x" * 20_000_000
    sent, given_up = module._sent, threading.Event()

    async def noted(request: web.Request, html: str) -> web.StreamResponse:
        answered = await sent(request, html)
        given_up.set()
        return answered

    monkeypatch.setattr(module, "_sent", noted)
    hung = socket.create_connection(("127.0.0.1", server.port))
    with hung:
        path = server.url.split(str(server.port))[1]
        hung.sendall(f"GET {path}part/results HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}events") as found:
            for number in range(2, 4):
                parts.now = {"results": number}
                while await versions(found) != parts.now:
                    pass
        # One that reads earlier does not hang, and would get the whole part.
        assert await asyncio.to_thread(given_up.wait, 60)
        # What the kernel holds, and then the end: the server has aborted.
        hung.settimeout(30)
        received = 0
        with suppress(ConnectionResetError):
            while chunk := hung.recv(1 << 20):
                received += len(chunk)
        assert received < len(parts.text)


@pytest.mark.heavy
async def test_connections_are_bounded(server: PageServer) -> None:
    idle = [
        socket.create_connection(("127.0.0.1", server.port)) for _ in range(MAX_CONNECTIONS + 2 * BACKLOG)
    ]
    try:
        with suppress(aiohttp.ClientError):
            # Until all have been accepted; without a limit, until this test's time is up.
            while True:
                await answer(server.url)
    finally:
        for each in idle:
            each.close()


def test_port_in_use_is_a_setting_error(server: PageServer, parts: Parts) -> None:
    with pytest.raises(SettingError, match=f"--ui: cannot listen at port {server.port}: .*name another port"):
        PageServer(parts, server.port)


def test_tokens_differ_and_are_long(parts: Parts) -> None:
    servers = [PageServer(parts) for _ in range(2)]
    tokens = {each.url.split("/")[3] for each in servers}
    for each in servers:
        each.close()
    assert len(tokens) == 2
    assert all(len(token) >= 22 for token in tokens)
