"""A replica that sends more around its answers than in them costs itself the connection, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from forebay.clients.http.connection import MAX_FRAMING_BYTES, MAX_INTERIM

from ..gateway.conftest import CHAT, Served, before_engines, until  # noqa: TID252
from .bounds import without_standstill

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
ENDLESS = {
    "interim answers": (b"", INTERIM * 1000),
    "interim answers one by one": (b"", INTERIM),
    "trailers of one name": (HEAD + b"2\r\n{}\r\n0\r\nx-", b"a" * 4096),
    "a trailer": (HEAD + b"2\r\n{}\r\n0\r\nx-a: ", b"a" * 4096),
    "many trailers": (HEAD + b"2\r\n{}\r\n0\r\n", b"x-a: 1\r\n" * 512),
    "an extension of a chunk": (HEAD + b"2;a=", b"a" * 4096),
    "the size of a chunk": (HEAD, b"0" * 4096),
    "a header": (b"HTTP/1.1 200 OK\r\nx-a: ", b"a" * 4096),
    "a reason": (b"HTTP/1.1 200 ", b"a" * 4096),
}
"""How an answer begins, and what follows without end."""


@asynccontextmanager
async def endless(begin: bytes, more: bytes, sent: list[int]) -> AsyncIterator[str]:
    """A replica that lists a model, and never ends its answer to a call. `sent`: bytes of each answer."""
    models = b'{"object":"list","data":[{"id":"m","object":"model"}]}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                    writer.write(b"content-length: %d\r\n\r\n%b" % (len(models), models))
                    continue
                length = int(head.lower().split(b"content-length: ")[1].split()[0])
                await reader.readexactly(length)
                sent.append(0)
                writer.write(begin)
                while more:
                    writer.write(more)
                    await writer.drain()
                    sent[-1] += len(more)
                    await asyncio.sleep(0)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("stream", [False, True])
async def test_endless_frame_closes_its_connection(kind: str, stream: bool) -> None:
    sent: list[int] = []

    async def attack(url: str, served: Served, progress: Callable[[], None]) -> int:
        body = CHAT | {"model": "m", "stream": stream}
        async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
            try:
                await response.read()
            except Exception:
                return 0
            return response.status

    async with endless(*ENDLESS[kind], sent) as url, before_engines(also=(url,)) as served:
        # A 200 has been sent when the end of the answer does not come: it is cut off then.
        assert await without_standstill(partial(attack, url, served)) in (0, 502)
        await until(lambda: served.gateway.in_flight == 0)
        received = (MAX_INTERIM + 1) * len(INTERIM) + MAX_FRAMING_BYTES
        # What the kernel holds of each connection was sent and not read.
        assert max(sent) < received + (16 << 20)


async def test_a_few_interim_answers_and_trailers_are_read() -> None:
    answer = INTERIM * MAX_INTERIM + HEAD + b"2\r\n{}\r\n0\r\nx-a: 1\r\n\r\n"
    async with endless(answer, b"", []) as url, before_engines(also=(url,)) as served:
        for _ in range(2):
            body = CHAT | {"model": "m"}
            async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
                assert (response.status, await response.read()) == (200, b"{}")
