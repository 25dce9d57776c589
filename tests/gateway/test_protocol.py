"""Connections: what is set on them, and how they are used again."""

from __future__ import annotations

import socket

import orjson

from .conftest import CHAT, before, until
from .test_bad_input import HEAD, answer, raw


async def test_small_chunks_are_sent_at_once() -> None:
    async with before() as (served, _):
        _, writer = await raw(served, b"GET /health HTTP/1.1\r\n")
        await until(lambda: len(served.server.server_state.connections) == 1)
        (connection,) = served.server.server_state.connections
        taken = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    body = orjson.dumps(CHAT)
    good = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    bad = HEAD + b"content-length: 1\r\n\r\n{"
    async with before() as (served, replicas):
        reader, writer = await raw(served, bad + good + bad + b"GET /nothing HTTP/1.1\r\n\r\n")
        assert (await answer(reader))[1]["code"] == "invalid_json"
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        length = int(head.lower().split(b"content-length: ")[1].split()[0])
        assert orjson.loads(await reader.readexactly(length))["choices"]
        assert (await answer(reader))[1]["code"] == "invalid_json"
        assert (await answer(reader))[1]["code"] == "unknown_url"
        writer.close()
        assert replicas[0].report().completed == 1


async def test_unread_small_body_keeps_the_connection() -> None:
    async with before() as (served, _):
        reader, writer = await raw(served, b"POST /nothing HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc")
        assert (await answer(reader))[0] == 404
        writer.write(b"GET /nothing HTTP/1.1\r\n\r\n")
        assert (await answer(reader))[0] == 404
        writer.close()
