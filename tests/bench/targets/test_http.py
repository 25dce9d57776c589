"""HTTP as servers speak it, and violations of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.targets import http
from forebay.bench.targets.events import Collector
from forebay.bench.targets.http import Connection, HttpServer
from forebay.engine.failures import Redactor
from forebay.errors import EngineError, Overloaded, ProtocolViolation, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def talk(serve: Serve, use: Callable[[HttpServer], Awaitable[None]]) -> None:
    """Run `use` with a client of a server that handles connections with `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = HttpServer(f"http://127.0.0.1:{port}", headers={}, quote=Redactor())
    try:
        await client.connect()
        await asyncio.wait_for(use(client), 20)
    finally:
        client.close()
        server.close()
        await server.wait_closed()


def answering(*answers: bytes) -> Serve:
    """Answers the requests of a connection with `answers` in turn, then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    return serve


async def got(client: HttpServer) -> Collector:
    answer = Collector()
    await client.get("/x", answer)
    return answer


def one(answer: bytes) -> Collector:
    """The result of reading `answer`. Raises what the client raises."""
    found: list[Collector] = []

    async def use(client: HttpServer) -> None:
        found.append(await got(client))

    asyncio.run(talk(answering(answer), use))
    return found[0]


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"hi"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hi"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503, b""),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", 200, b"abc"),
        # Neither length nor chunks: the body ends with the connection.
        (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, b"all of it"),
    ],
)
def test_answers_are_read_to_their_end(answer: bytes, status: int, body: bytes) -> None:
    found = one(answer)
    assert (found.status, bytes(found.data)) == (status, body)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"", Unreachable, "closed the connection before it answered"),
        (b"HTTP/1.1 200 OK\r\n", Unreachable, "before it answered"),
        (OK[:-1], Unreachable, "in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\na", Unreachable, "in the middle"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolViolation, "did not speak HTTP: .*SSH-2.0"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 500_000, ProtocolViolation, "headers of more than"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            ProtocolViolation,
            "did not speak HTTP",
        ),
    ],
)
def test_what_is_no_answer_is_told(answer: bytes, error: type[EngineError], says: str) -> None:
    with pytest.raises(error, match=says):
        one(answer)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: OK[:-2] + data))
def test_any_bytes_give_an_answer_or_an_error(data: bytes) -> None:
    try:
        found = one(data)
    except EngineError:
        return
    assert found.status >= 200


def test_a_body_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1000)
    with pytest.raises(ProtocolViolation, match="answer of more than 1000 bytes"):
        one(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 5000)


def test_what_a_reader_raises_ends_the_request() -> None:
    class Picky(Collector):
        def head(self, status: int, headers: Mapping[str, str]) -> None:
            raise Overloaded("no")

    async def use(client: HttpServer) -> None:
        with pytest.raises(Overloaded, match="no"):
            await client.get("/x", Picky())
        assert bytes((await got(client)).data) == b"hi", "the next request has a connection of its own"

    asyncio.run(talk(answering(OK, OK), use))


async def test_a_connection_is_used_again_while_it_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK, OK, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))(reader, writer)

    async def use(client: HttpServer) -> None:
        for _ in range(3):
            await got(client)
        assert connections == 1
        await got(client)
        assert connections == 2, "the server announced that it closes the first"
        # One that was idle for longer than servers keep it.
        monkeypatch.setattr(http, "KEEPALIVE_S", 0.0)
        await got(client)
        assert connections == 3

    await talk(serve, use)


async def test_a_connection_that_is_closed_at_once_is_told() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def use(client: HttpServer) -> None:
        connection = client._idle[0]
        while connection.usable:  # noqa: ASYNC110 (what is waited for is in another task's plain fields)
            await asyncio.sleep(0.001)
        connect = client._connect

        async def lost(host: str) -> Connection:
            opened = await connect(host)
            while opened.usable:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            return opened

        client._connect = lost  # type: ignore[method-assign]
        with pytest.raises(Unreachable, match="closed the connection before it answered"):
            await got(client)

    await talk(serve, use)


async def test_no_tls_and_no_name_are_told() -> None:
    async def use(client: HttpServer) -> None:
        secure = HttpServer(client.url.replace("http:", "https:"), headers={}, quote=Redactor())
        with pytest.raises(Unreachable, match="no TLS connection"):
            await secure.connect()
        nowhere = HttpServer(f"http://{'a' * 70}.example", headers={}, quote=Redactor())
        with pytest.raises(Unreachable, match="not a valid name"):
            await nowhere.connect()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    await talk(serve, use)


async def test_bytes_that_nobody_asked_for_cost_the_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK + OK, OK)(reader, writer)

    async def use(client: HttpServer) -> None:
        for _ in range(2):
            assert bytes((await got(client)).data) == b"hi"
        assert connections == 2

    await talk(serve, use)


async def test_many_at_a_time() -> None:
    async def use(client: HttpServer) -> None:
        found = await asyncio.gather(*(got(client) for _ in range(50)))
        assert all(bytes(one.data) == b"hi" for one in found)
        assert len(client._open) == 50

    await talk(answering(OK, OK), use)


def test_connections_are_ready_before_they_are_needed() -> None:
    async def use(client: HttpServer) -> None:
        await client.make_ready(120)
        assert len(client._idle) == 120
        before = set(client._open)
        await asyncio.gather(*(got(client) for _ in range(120)))
        assert set(client._open) <= before, "no further one was opened"

    asyncio.run(talk(answering(OK, OK), use))


def test_connections_that_cannot_be_made_ready_are_left_to_the_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(client: HttpServer) -> None:
        real, left = client._connect, iter(range(2))

        async def few(host: str) -> Connection:
            if next(left, None) is None:
                raise Unreachable("no more")
            return await real(host)

        monkeypatch.setattr(client, "_connect", few)
        await client.make_ready(10)
        assert len(client._idle) == 3

    asyncio.run(talk(answering(OK), use))
