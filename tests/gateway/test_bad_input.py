"""Mistakes of clients, over real sockets: each gets the reason, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .conftest import CHAT, Served, before, until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def raw(served: Served, *pieces: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    return reader, writer


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer; what comes after it is of no interest."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    length = int(head.lower().split(b"content-length: ")[1].split()[0])
    return int(head.split()[1]), orjson.loads(await reader.readexactly(length))["error"]


async def fine(served: Served, headers: dict[str, str] | None = None) -> None:
    """Somebody else's request is answered."""
    url = served.url + "/v1/chat/completions"
    async with served.session.post(url, json=CHAT, headers=headers) as response:
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"] == "echo:aaf4c61ddcc5"


async def test_hundred_megabyte_body_with_a_length_is_rejected() -> None:
    async with before() as (served, replicas):
        reader, writer = await raw(served, HEAD + b"content-length: 104857600\r\n\r\n")
        sending = asyncio.ensure_future(_send(writer, 100))
        status, error = await answer(reader)
        await fine(served)
        sending.cancel()
        writer.close()
        assert (status, error["code"]) == (413, "request_too_large")
        assert replicas[0].report().completed == 1


async def test_hundred_megabyte_chunked_body_is_rejected() -> None:
    async with before(limits={"max_body_bytes": 100_000}) as (served, _):
        reader, writer = await raw(served, HEAD + b"transfer-encoding: chunked\r\n\r\n")
        sending = asyncio.ensure_future(_send(writer, 100, chunked=True))
        status, error = await answer(reader)
        await fine(served)
        sending.cancel()
        writer.close()
        assert (status, error["code"]) == (413, "request_too_large")


async def test_concurrent_large_bodies_are_bounded() -> None:
    limits = {"max_body_bytes": 1_000_000, "max_held_bytes": 1_500_000}
    async with before(limits=limits) as (served, _):
        head = HEAD + b"content-length: 900000\r\n\r\n"
        _, first = await raw(served, head, b"x" * 800_000)
        await until(lambda: served.gateway._room.held == 800_000)
        reader, second = await raw(served, head, b"x" * 800_000)
        status, error = await answer(reader)
        assert (status, error["code"]) == (503, "gateway_full")
        await fine(served)
        first.close()
        second.close()
        await until(lambda: served.gateway._room.held == 0)


async def _send(writer: asyncio.StreamWriter, megabytes: int, *, chunked: bool = False) -> None:
    part = b"x" * (1 << 20)
    try:
        for _ in range(megabytes):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            await writer.drain()
    except ConnectionError:
        return  # The gateway has closed: it does not read without end.


@pytest.mark.heavy
async def test_stalled_body_times_out() -> None:
    async with before(limits={"body_s": 0.2}) as (served, replicas):
        reader, writer = await raw(served, HEAD + b'content-length: 100\r\n\r\n{"model"')
        status, error = await answer(reader)
        writer.close()
        assert (status, error["code"]) == (408, "request_timeout")
        await fine(served)
        assert sum(replicas[0].report().calls.values()) == 1


async def test_disconnect_in_the_body_leaves_nothing() -> None:
    async with before() as (served, replicas):
        _, writer = await raw(served, HEAD + b'content-length: 100\r\n\r\n{"model"')
        await until(lambda: served.gateway.in_flight == 1)
        writer.close()
        await until(lambda: served.gateway.in_flight == 0)
        await fine(served)
        assert sum(replicas[0].report().calls.values()) == 1


@pytest.mark.heavy
async def test_trickling_headers_time_out() -> None:
    async with before(limits={"header_s": 0.2}) as (served, _):
        reader, writer = await raw(served, b"POST /v1/chat/completions HTTP/1.1\r\nx-a: ")
        status, error = await answer(reader)
        writer.close()
        assert (status, error["code"]) == (408, "request_timeout")


@pytest.mark.heavy
async def test_silent_connection_is_closed() -> None:
    async with before(limits={"header_s": 0.2}) as (served, _):
        reader, writer = await raw(served)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        b"x-a: " + b"a" * 40_000,
        b"\r\n".join(b"x-%d: a" % i for i in range(200)),
        b"x-a: " + b"a" * 4_000_000,
    ],
)
async def test_too_large_headers_are_rejected(headers: bytes) -> None:
    async with before() as (served, _):
        reader, writer = await raw(served)
        writer.write(HEAD + headers + b"\r\ncontent-length: 0\r\n\r\n")
        status, error = await answer(reader)
        writer.close()
        assert (status, error["code"]) == (431, "headers_too_large")
        await fine(served)


@pytest.mark.parametrize(
    "head", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET / SPDY/9\r\n\r\n", b"nonsense\r\n\r\n"]
)
async def test_bytes_that_are_not_http_are_rejected(head: bytes) -> None:
    async with before() as (served, _):
        reader, writer = await raw(served, head)
        assert (await answer(reader))[0] == 400
        writer.close()


BODIES = [
    (b"{", "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    (b"[]", "invalid_json", None),
    (b"null", "invalid_json", None),
    (b"", "invalid_json", None),
    (b"[" * 900 + b"]" * 900, "invalid_json", None),
    (
        b'{"model": "fake", "messages": [{"role": "user"}], "x": ' + b"[" * 100 + b"]" * 100 + b"}",
        "invalid_json",
        None,
    ),
    (b'{"a":' * 100_000, "invalid_json", None),
    (b"[" * 600_000, "invalid_json", None),
    (b"{}", "invalid_value", "model"),
    (b'{"model": 3}', "invalid_value", "model"),
    (b'{"model": ""}', "invalid_value", "model"),
    (b'{"model": "fake", "stream": "yes"}', "invalid_value", "stream"),
    (b'{"model": "fake"}', "invalid_value", "messages"),
    (b'{"model": "fake", "messages": "hello"}', "invalid_value", "messages"),
    (b'{"model": "fake", "messages": [3]}', "invalid_value", "messages[0]"),
    (b'{"model": "fake", "messages": [{"content": "x"}]}', "invalid_value", "messages[0].role"),
]


@pytest.mark.heavy
async def test_malformed_bodies_are_rejected() -> None:
    async with before() as (served, replicas):
        for body, code, param in BODIES:
            async with served.session.post(served.url + "/v1/chat/completions", data=body) as response:
                assert response.status == 400, body[:60]
                error = (await response.json())["error"]
                assert (error["code"], error["param"]) == (code, param), body[:60]
        # A probe of our own may be sent, if the machine is busy.
        assert len(replicas[0].report().calls) <= 1
        await fine(served)


async def test_wrong_keys_are_rejected(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key").write_text("sk-right")
    async with before(keys=[{"name": "a", "key": {"file": str(tmp_path / "key")}}]) as (served, replicas):
        for given in (
            None,
            "",
            "Bearer",
            "Bearer sk-wrong",
            "Basic sk-right",
            "Bearer sk-right2",
            "sk-right",
        ):
            headers = {} if given is None else {"Authorization": given}
            url = served.url + "/v1/chat/completions"
            async with served.session.post(url, json=CHAT, headers=headers) as response:
                assert response.status == 401, given
                assert "sk-" not in await response.text()
        assert not replicas[0].report().calls
        headers = {"Authorization": "bearer sk-right"}
        async with served.session.post(url, json=CHAT, headers=headers) as response:
            assert response.status == 200
        key = 'forebay_gateway_requests_total{key="unknown",outcome="401",route="/v1/chat/completions"}'
        assert await served.metric(key) == 7
        assert "sk-" not in caplog.text


async def test_wrong_key_is_rejected_before_a_large_body_is_read() -> None:
    async with before(keys=[{"name": "a", "key": {"env": "PATH"}}]) as (served, _):
        reader, writer = await raw(served, HEAD + b"content-length: 104857600\r\n\r\n")
        sending = asyncio.ensure_future(_send(writer, 100))
        assert (await answer(reader))[0] == 401
        sending.cancel()
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_before_the_answer_aborts_the_call(stream: bool) -> None:
    async with before(ReplicaScript(delay=Fixed(600.0))) as (served, replicas):
        body = orjson.dumps(CHAT | {"stream": stream})
        _, writer = await raw(served, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: replicas[0].report().in_flight == 1)
        writer.close()
        await until(lambda: replicas[0].report().aborted == 1)
        await until(lambda: served.gateway.in_flight == 0)
        outcome = 'outcome="hung_up",route="/v1/chat/completions"}'
        assert await served.metric('forebay_gateway_requests_total{key="anyone",' + outcome) == 1


async def test_disconnect_during_the_answer_aborts_the_call() -> None:
    script = ReplicaScript(delay=Fixed(0.0), token_s=100.0, chunks=3)
    async with before(script) as (served, replicas):
        body = orjson.dumps(CHAT | {"stream": True})
        reader, writer = await raw(served, HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"echo")
        writer.close()
        await until(lambda: replicas[0].report().aborted == 1)


async def test_unknown_paths_and_methods_are_rejected() -> None:
    async with before() as (served, _):
        async with served.session.get(served.url + "/v1/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "unknown_url"
        async with served.session.get(served.url + "/v1/chat/completions") as response:
            assert (response.status, response.headers["allow"]) == (405, "POST")
        async with served.session.post(served.url + "/health") as response:
            assert (response.status, response.headers["allow"]) == (405, "GET")


async def test_protocol_upgrade_is_not_accepted() -> None:
    async with before(limits={"body_s": 0.2}) as (served, _):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await served.session.ws_connect(served.url + "/v1/models")
        await fine(served)
