"""Connections to a server: kept, reused, given up, and encrypted."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.clients.http import server as server_module
from forebay.clients.http.readers import AnswerHead, CallOverdue, WholeAnswer
from forebay.clients.http.server import MANY, HttpClient, HttpServer
from forebay.errors import BadRequest, Overloaded, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CLOSES = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def talk(
    serve: Serve,
    use: Callable[[HttpServer], Awaitable[None]],
    keys: ssl.SSLContext | None = None,
    **settings: Any,
) -> None:
    """Run `use` with a client of a server that handles connections with `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=keys)
    scheme = "http" if keys is None else "https"
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = HttpServer(url, headers={"X-Own": "1"}, quote=str, **settings)
    try:
        await asyncio.wait_for(use(client), 20)
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


def answering(*answers: bytes, seen: list[bytes] | None = None) -> Serve:
    """Answers the requests of a connection with `answers` in turn, then closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                head = await reader.readuntil(b"\r\n\r\n")
                if seen is not None:
                    seen.append(head)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    return serve


def whole() -> WholeAnswer:
    return WholeAnswer("it", max_bytes=1000, max_error_bytes=10)


async def got(client: HttpServer, **settings: Any) -> bytes:
    answer = whole()
    await client.get("/x", answer, **settings)
    return bytes(answer.data)


async def test_good_connection_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def use(client: HttpServer) -> None:
        assert [await got(client) for _ in range(3)] == [b"hi"] * 3
        assert client.connections == 0, "the server announced that it closes it"
        await got(client)
        monkeypatch.setattr(server_module, "KEEPALIVE_S", 0.0)
        before = set(client._open)
        await got(client)
        assert client._open.isdisjoint(before), "it was idle for longer than servers keep it"

    await talk(answering(OK, OK, CLOSES, seen=seen), use)
    assert len(seen) == 5


async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEPALIVE_S", 0.01)
    ended = asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()
        ended.set()
        writer.close()

    async def use(client: HttpServer) -> None:
        await got(client)
        await ended.wait()
        assert client.connections == 0

    await talk(held, use)


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("pulled", [True, False])
async def test_a_request_on_a_stale_connection_is_sent_again(again: bool, pulled: bool) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK)(reader, writer) if connections > 1 else await stale(reader, writer)

    async def stale(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        # Closed as the next request arrives.
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def ask(client: HttpServer) -> bytes:
        if pulled:
            return await (await client.open_post("/x", b"", again=again)).read_start(10)
        answer = whole()
        await client.post("/x", b"", answer, again=again)
        return bytes(answer.data)

    async def use(client: HttpServer) -> None:
        await ask(client)
        if again:
            assert await ask(client) == b"hi"
        else:
            with pytest.raises(Unreachable, match="before it answered"):
                await ask(client)
        assert connections == 1 + again

    await talk(serve, use)


async def test_request_on_a_closed_new_connection_is_not_retried() -> None:
    seen: list[bytes] = []

    async def use(client: HttpServer) -> None:
        with pytest.raises(Unreachable, match="closed the connection before it answered"):
            await got(client)

    await talk(answering(b"", seen=seen), use)
    assert len(seen) == 1


async def test_an_error_of_a_reader_ends_its_request_only() -> None:
    class Picky(WholeAnswer):
        def head(self, head: AnswerHead) -> None:
            raise Overloaded("no")

    async def use(client: HttpServer) -> None:
        with pytest.raises(Overloaded, match="no"):
            await client.get("/x", Picky("it", max_bytes=1, max_error_bytes=1))
        assert await got(client) == b"hi"

    await talk(answering(OK, OK), use)


async def test_unsolicited_bytes_close_the_connection() -> None:
    seen: list[bytes] = []

    async def use(client: HttpServer) -> None:
        for extra in range(1, 4):
            assert await got(client) == b"hi"
            assert client.connections == 0
            assert len(seen) == extra

    for more in (OK, b"garbage"):
        seen.clear()
        await talk(answering(OK + more, OK, seen=seen), use)


async def test_a_call_has_a_time_limit_from_the_connection_on() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def use(client: HttpServer) -> None:
        for total_s in (0.05, -1.0):
            with pytest.raises(CallOverdue):
                await got(client, total_s=total_s)

    await talk(silent, use)
    with socket.socket() as full:
        # Its queue of new connections is full, so it accepts none.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        held = [socket.socket() for _ in range(3)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        client = HttpServer(f"http://127.0.0.1:{full.getsockname()[1]}", headers={}, quote=str, connect_s=0.1)
        with pytest.raises(Unreachable, match=r"did not accept a connection within 0\.1 s"):
            await got(client)
        with pytest.raises(CallOverdue):
            await got(client, total_s=0.05)
        await client.close()
        for one in held:
            one.close()


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = 0

    async def use(client: HttpServer) -> None:
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            ports = [dead.getsockname()[1], client._port]

            async def found(*_: object, **__: object) -> list[Any]:
                nonlocal lookups
                lookups += 1
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
            assert [await got(client) for _ in range(4)] == [b"hi"] * 4

    await talk(answering(CLOSES), use)
    assert lookups == 1


class Names:
    """A resolver whose next result is set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lookups = 0
        self.port: int | None = None
        self.error: OSError | None = None
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.find)
        monkeypatch.setattr(server_module, "ADDRESSES_S", -1.0)
        monkeypatch.setattr(server_module, "LOOKUP_S", 0.01)

    async def find(self, *_: object, **__: object) -> list[Any]:
        self.lookups += 1
        if self.error is not None:
            raise self.error
        if self.port is None:
            await asyncio.Event().wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", self.port))]


async def test_a_resolver_that_fails_for_a_while_is_bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: HttpServer) -> None:
        names = Names(monkeypatch)
        names.port = client._port
        assert await got(client) == b"hi"
        names.error = socket.gaierror(socket.EAI_AGAIN, "later")
        assert await got(client) == b"hi"
        names.error, names.port = None, None
        assert [await got(client) for _ in range(5)] == [b"hi"] * 5
        # The resolver has one question at a time.
        assert names.lookups == 3

    await talk(answering(CLOSES), use)


async def test_addresses_that_are_gone_moved_or_old_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: HttpServer) -> None:
        names = Names(monkeypatch)
        names.port = client._port
        assert await got(client) == b"hi"
        with socket.socket() as dead:
            dead.bind(("127.0.0.1", 0))
            names.port = dead.getsockname()[1]
            with pytest.raises(Unreachable, match="refused"):
                await got(client)
        names.error = socket.gaierror(socket.EAI_NONAME, "no such name")
        with pytest.raises(Unreachable, match="no such name"):
            await got(client)
        names.error, names.port = None, client._port
        assert await got(client) == b"hi"
        monkeypatch.setattr(server_module, "KNOWN_S", -1.0)
        names.error = socket.gaierror(socket.EAI_AGAIN, "later")
        with pytest.raises(Unreachable, match="later"):
            await got(client)

    await talk(answering(CLOSES), use)


@pytest.mark.parametrize("found", ["nothing", "later"])
async def test_a_name_that_was_never_resolved_is_reported(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    async def use(client: HttpServer) -> None:
        names = Names(monkeypatch)
        if found == "later":
            names.error = socket.gaierror(socket.EAI_AGAIN, "later")
        words = r"its name was not resolved within 0\.1 s" if found == "nothing" else "later"
        with pytest.raises(Unreachable, match=words):
            await got(client)

    await talk(answering(CLOSES), use, connect_s=0.1 if found == "nothing" else 60.0)


def tls_files(folder: Path) -> ssl.SSLContext:
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=x -days 2"
    files = ["-out", str(folder / "cert.pem"), "-keyout", str(folder / "key.pem")]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    async def refused(client: HttpServer) -> None:
        with pytest.raises(Unreachable, match=r"TLS connection \(self.signed cert.*\); .* SSL_CERT_FILE"):
            await got(client)

    async def trusted(client: HttpServer) -> None:
        assert [await got(client), await got(client)] == [b"hi", b"hi"]
        assert client.connections == 1

    context = tls_files(tmp_path)
    await talk(answering(OK), refused, context)
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    await talk(answering(OK, OK, OK), trusted, context, tls=trust)


async def test_missing_tls_and_unknown_host_are_named() -> None:
    async def use(client: HttpServer) -> None:
        secure = HttpServer(client.url.replace("http:", "https:"), headers={}, quote=str)
        with pytest.raises(Unreachable, match=r"no TLS connection .*: its URL begins with http://"):
            await got(secure)
        nowhere = HttpServer(f"http://{'a' * 70}.example", headers={}, quote=str)
        with pytest.raises(Unreachable, match="not a valid name"):
            await got(nowhere)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    await talk(serve, use)


async def test_headers_are_checked_and_replace_the_servers_own() -> None:
    seen: list[bytes] = []

    async def use(client: HttpServer) -> None:
        await got(client, headers=[("x-own", "2"), ("A", "b")])
        for name, value in (("A", "b\r\nC: d"), ("A\n", "b"), ("A", "ü"), ("A", "\0")):
            with pytest.raises(BadRequest, match="characters that HTTP does not allow"):
                await got(client, headers=[(name, value)])

    await talk(answering(OK, seen=seen), use)
    lines = seen[0].split(b"\r\n")
    assert lines[0] == b"GET /x HTTP/1.1"
    assert lines[2:] == [b"x-own: 2", b"A: b", b"", b""]


async def test_a_large_body_is_sent_whole() -> None:
    received: list[int] = []
    body = b"x" * (5 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.append(len(await reader.readexactly(len(body))))
        writer.write(OK)
        await writer.drain()
        writer.close()

    async def use(client: HttpServer) -> None:
        answer = whole()
        await client.post("/x", body, answer)
        assert bytes(answer.data) == b"hi"

    await talk(serve, use)
    assert received == [len(body)]


async def test_an_answer_before_the_body_is_sent_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()
        writer.close()

    async def use(client: HttpServer) -> None:
        answer = whole()
        await client.post("/x", b"x" * (32 << 20), answer)
        assert (answer.status, bytes(answer.data)) == (413, b"no")
        assert client.connections == 0

    await talk(serve, use)


async def test_slowly_pulled_answer_slows_its_server_down() -> None:
    size = 16 << 20

    async def use(client: HttpServer) -> None:
        answer = await client.open_post("/x", b"")
        while not answer._paused:  # noqa: ASYNC110 (what is waited for is in the connection's plain fields)
            await asyncio.sleep(0)
        assert answer._size < 1 << 20
        while data := await answer.read_any():
            nonlocal size
            size -= len(data)
        assert answer.at_end

    await talk(answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * size), use)
    assert size == 0


async def test_concurrent_requests_use_prepared_connections() -> None:
    async def use(client: HttpServer) -> None:
        await client.make_ready(120)
        assert len(client._idle) == client.connections == 120
        assert await asyncio.gather(*(got(client) for _ in range(120))) == [b"hi"] * 120
        assert client.connections == 120, "no further one was opened"

    await talk(answering(OK, OK), use)


def test_failed_prepared_connections_are_left_to_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: HttpServer) -> None:
        real, left = client._connect, iter(range(3))

        async def few() -> Any:
            if next(left, None) is None:
                raise Unreachable("no more")
            return await real()

        monkeypatch.setattr(client, "_connect", few)
        await client.make_ready(10)
        assert len(client._idle) == 3

    asyncio.run(talk(answering(OK), use))


async def test_servers_without_connections_are_forgotten() -> None:
    client = HttpClient(headers={}, quote=str)
    first = client.server("http://127.0.0.1:1")
    assert client.server("http://127.0.0.1:1") is first
    for port in range(2, 2 + MANY):
        client.server(f"http://127.0.0.1:{port}")
    assert client.server("http://127.0.0.1:1") is not first
    await client.close()


async def test_cancellation_while_connecting_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the round of the loop in which the connection is made."""
    seen: list[bytes] = []

    async def use(client: HttpServer) -> None:
        dial = client._dial

        async def dialled() -> Any:
            connection = await dial()
            task.cancel()
            return connection

        monkeypatch.setattr(client, "_dial", dialled)
        task = asyncio.ensure_future(client.get("/", whole()))
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert not client.connections

    await talk(answering(OK, seen=seen), use)
    assert not seen


async def test_server_that_ends_during_an_upload_is_reported_at_once() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()
        await asyncio.sleep(20)

    async def use(client: HttpServer) -> None:
        with pytest.raises(Unreachable, match="before it answered"):
            await client.post("/", b"x" * 20_000_000, whole(), total_s=15)

    await talk(serve, use)
