"""HTTP as servers speak it, and violations of it, without sockets."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clients.http import connection as connection_module
from forebay.clients.http.connection import MAX_FRAMING_BYTES, MAX_INTERIM, Connection, HttpCall
from forebay.clients.http.readers import WholeAnswer
from forebay.errors import EngineError, ProtocolViolation, Unreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
MANY = MAX_FRAMING_BYTES + 4096


class Wire(asyncio.Transport):
    """A transport that a test plays the server of."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: object) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def abort(self) -> None:
        self.closed = True


class Pool:
    def __init__(self) -> None:
        self.idle: list[Connection] = []

    def put(self, connection: Connection) -> None:
        self.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        if connection in self.idle:
            self.idle.remove(connection)


Outcome = tuple[int, bytes, bool]


async def outcome(pieces: Sequence[bytes], max_bytes: int) -> Outcome:
    pool, wire = Pool(), Wire()
    connection = Connection(pool, "http://it", str)
    connection.connection_made(wire)
    answer = WholeAnswer("http://it", max_bytes=max_bytes, max_error_bytes=10)
    ended = answer.ended = asyncio.get_running_loop().create_future()
    connection.send(HttpCall(b"GET"), answer)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    if not wire.closed:
        connection.eof_received()
    kept = bool(pool.idle)
    connection.connection_lost(None)
    assert ended.done(), "neither an answer nor an error"
    await ended
    return answer.status, bytes(answer.data), kept


def read(*pieces: bytes, max_bytes: int = 1 << 20) -> Outcome:
    """Status, body, and whether the connection can be used again. Raises what a caller of the client gets."""
    return asyncio.run(outcome(pieces, max_bytes))


ANSWERS: list[tuple[bytes, Outcome]] = [
    (OK, (200, b"hi", True)),
    (OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), (200, b"hi", False)),
    (INTERIM * MAX_INTERIM + OK, (200, b"hi", True)),
    (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", (503, b"", True)),
    (b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 50, (500, b"x" * 10, False)),
    (b"HTTP/1.1 204 Nothing\r\n\r\n", (204, b"", True)),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", (304, b"", True)),
    (CHUNKED + b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nX-Late: 1\r\n\r\n", (200, b"abc", True)),
    # Neither length nor chunks: the body ends with the connection.
    (b"HTTP/1.0 200 OK\r\n\r\nall of it", (200, b"all of it", False)),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
def test_answers_are_read_to_the_end(answer: bytes, expected: Outcome) -> None:
    assert read(answer) == expected
    assert read(*(answer[at : at + 1] for at in range(len(answer)))) == expected


VIOLATIONS = [
    (b"", Unreachable, "closed the connection before it answered"),
    (b"HTTP/1.1 200 OK\r\n", Unreachable, "before it answered"),
    (OK[:-1], Unreachable, "middle of its answer, after 1 byte of the 2 in its Content-Length"),
    (CHUNKED + b"9\r\nab", Unreachable, "in the middle of its answer, after 2 bytes$"),
    (OK.replace(b"\r\nC", b"\r\nContent-Encoding: gzip\r\nC", 1), ProtocolViolation, "a compressed answer"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolViolation, "did not speak HTTP: .*SSH-2.0"),
    (CHUNKED + b"zz\r\n", ProtocolViolation, "did not speak HTTP"),
    (CHUNKED + b"-1\r\n", ProtocolViolation, "did not speak HTTP"),
    (CHUNKED + b"f" * 17 + b"\r\n", ProtocolViolation, "did not speak HTTP"),
    (CHUNKED + b"1\r\nabc", ProtocolViolation, "did not speak HTTP"),
    # Two lengths, or two ways to find the end: two readers would see two answers.
    (OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"), ProtocolViolation, "did not speak HTTP"),
    (
        OK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ProtocolViolation,
        "did not speak HTTP",
    ),
    (OK.replace(b": 2", b": -2"), ProtocolViolation, "did not speak HTTP"),
    (OK.replace(b": 2", b": 2,2"), ProtocolViolation, "did not speak HTTP"),
    (OK.replace(b"Content-Length:", b"Content-Length :"), ProtocolViolation, "did not speak HTTP"),
    (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        ProtocolViolation,
        "did not speak HTTP",
    ),
    (b"HTTP/1.1 200 OK\r\nA: " + b"x" * MANY, ProtocolViolation, "more than 65536 bytes of headers"),
    (b"HTTP/1.1 200 " + b"x" * MANY, ProtocolViolation, "more than 65536 bytes of headers"),
    (INTERIM * (MAX_INTERIM + 1) + OK, ProtocolViolation, "more than 16 interim answers"),
    (CHUNKED + b"0" * MANY, ProtocolViolation, "without a part of its body"),
    (CHUNKED + b"1;" + b"x" * MANY, ProtocolViolation, "without a part of its body"),
    (CHUNKED + b"1\r\na\r\n0\r\nA: " + b"x" * MANY, ProtocolViolation, "without a part of its body"),
    (OK.replace(b": 2", b": 2000000") + b"x" * 2_000_000, ProtocolViolation, "more than 1048576 bytes"),
]


@pytest.mark.parametrize(("answer", "error", "says"), VIOLATIONS)
def test_invalid_answer_is_one_error(answer: bytes, error: type[EngineError], says: str) -> None:
    pieces = [answer[at : at + 4096] for at in range(0, len(answer), 4096)]
    with pytest.raises(error, match=says):
        read(*pieces)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: OK[:-2] + data))
def test_any_bytes_give_an_answer_or_an_error(data: bytes) -> None:
    try:
        status, _, _ = read(data)
    except EngineError:
        return
    assert status >= 200


@st.composite
def chunked_answers(draw: st.DrawFn) -> tuple[bytes, bytes]:
    chunks = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=6))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return CHUNKED + framed + b"0\r\n\r\n", b"".join(chunks)


@given(chunked_answers(), st.lists(st.integers(0, 300), max_size=8))
def test_chunking_does_not_change_the_answer(answer: tuple[bytes, bytes], cuts: list[int]) -> None:
    wire, body = answer
    places = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    pieces = [wire[begin:end] for begin, end in pairwise(places)]
    assert read(*pieces) == (200, body, True)


@pytest.mark.parametrize("until_s", [math.inf, 1e9])
def test_silence_in_a_body_of_known_length_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, until_s: float
) -> None:
    monkeypatch.setattr(connection_module, "BODY_SILENCE_S", 0.0)

    async def silent(answer: bytes) -> asyncio.Future[None]:
        connection = Connection(Pool(), "http://it", str)
        connection.connection_made(Wire())
        reader = WholeAnswer("http://it", max_bytes=10, max_error_bytes=10)
        ended = reader.ended = asyncio.get_running_loop().create_future()
        connection.send(HttpCall(b"GET", until_s=until_s), reader)
        connection.data_received(answer)
        for _ in range(5):
            await asyncio.sleep(0)
        return ended

    # It may take as long as the model needs.
    assert not asyncio.run(silent(CHUNKED + b"9\r\nab")).done()
    assert not asyncio.run(silent(OK[:-4])).done()
    with pytest.raises(Unreachable, match="sent nothing for 0 s in the middle of its answer, after 1 byte"):
        asyncio.run(silent(OK[:-1])).result()


def test_a_closed_connection_is_freed_at_once() -> None:
    async def closed() -> weakref.ref[Connection]:
        connection = Connection(Pool(), "http://it", str)
        connection.connection_made(Wire())
        connection.data_received(OK)
        connection.connection_lost(None)
        return weakref.ref(connection)

    gc.disable()
    try:
        assert asyncio.run(closed())() is None
    finally:
        gc.enable()
