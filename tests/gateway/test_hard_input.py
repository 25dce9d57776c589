"""What a client may do against the protocol itself, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .conftest import CHAT, before, serving, spec_of, until
from .test_bad_input import HEAD, _send, answer, fine, raw
from .test_relay import recorder


async def test_endless_trailers_are_cut_off() -> None:
    async with before() as (served, _):
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-a: "
        reader, writer = await raw(served, head)
        told = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(told.lower().split(b"content-length: ")[1].split()[0]))
        sending = asyncio.ensure_future(_send(writer, 8))
        status, error = await answer(reader)
        assert (status, error["code"]) == (431, "headers_too_large")
        await fine(served)
        sending.cancel()
        writer.close()


async def test_trailers_are_not_treated_as_headers() -> None:
    seen: list[web.Request] = []
    async with recorder(seen, []) as url, serving(spec_of([url])) as served:
        body = orjson.dumps(CHAT)
        chunk = b"%x\r\n%b\r\n0\r\nx-late: 1\r\n\r\n" % (len(body), body)
        reader, writer = await raw(served, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk)
        await asyncio.wait_for(reader.readuntil(b"[DONE]"), 30)
        writer.close()
        assert "X-Late" not in seen[0].headers


async def test_body_after_an_upgrade_is_not_a_request() -> None:
    inner = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with before() as (served, _):
        head = HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(inner)
        reader, writer = await raw(served, head)
        status, error = await answer(reader)
        assert (status, error["code"]) == (400, "invalid_http")
        writer.write(inner)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


@pytest.mark.heavy
async def test_client_that_reads_nothing_is_cut_off() -> None:
    async with before(limits={"unread_s": 0.5}) as (served, replicas):
        message = {"role": "user", "content": "((fault:huge))"}
        body = orjson.dumps(CHAT | {"messages": [message], "stream": True})
        began, writers = b"", []
        # If this process was held up, the time is over before the answer begins.
        while b" 200 " not in began:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            writers.append(writer)
            writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
            began = await reader.readuntil(b"\r\n")
        await until(lambda: replicas[0].report().aborted >= 1)
        await until(lambda: served.gateway.in_flight == 0)
        await until(lambda: len(served.server.server_state.connections) < len(writers))
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("together", [True, False])
async def test_disconnect_with_a_pipelined_request_is_handled(together: bool) -> None:
    async with before(ReplicaScript(delay=Fixed(600.0))) as (served, replicas):
        body = orjson.dumps(CHAT)
        first = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        second = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n"
        _, writer = await raw(served, first + second if together else first)
        await until(lambda: replicas[0].report().in_flight == 1)
        if not together:
            writer.write(second)
            [connection] = served.server.server_state.connections
            await until(lambda: bool(connection.pipeline))
        writer.close()
        await until(lambda: replicas[0].report().aborted == 1)


async def test_one_key_cannot_fill_the_gateway(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"sk-{name}")
    keys = [{"name": name, "key": {"file": str(tmp_path / name)}} for name in "ab"]
    slow = ReplicaScript(delay=Fixed(600.0))
    async with before(slow, keys=keys, limits={"in_flight": 8}) as (served, _):

        def ask() -> Any:
            url, key = served.url + "/v1/chat/completions", {"Authorization": "Bearer sk-a"}
            return served.session.post(url, json=CHAT, headers=key)

        running = [asyncio.ensure_future(ask()) for _ in range(8)]
        # The other four are refused, each as soon as it is known.
        await until(lambda: served.gateway.in_flight == sum(one.done() for one in running) == 4)
        other = {"Authorization": "Bearer sk-b"}
        async with served.session.get(served.url + "/v1/models", headers=other) as response:
            assert response.status == 200
        for one in running:
            one.cancel()
