"""Requests as bytes: valid ones, ones that servers parse differently, and a client that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

BODY = b'{"model":"fake","messages":[{"role":"user","content":"hello"}],"max_tokens":4}'
INNER_ID = b"inner-request"
INNER = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-right\r\n"
    b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (INNER_ID, len(BODY), BODY)
)
"""A request hidden in another's body; it must not reach a replica."""
LINE, KEY = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n",
    b"authorization: Bearer sk-right\r\n",
)


def call(*headers: bytes, body: bytes = BODY, length: bool = True, line: bytes = LINE) -> bytes:
    """A call with the key; `headers` come first."""
    told = b"content-length: %d\r\n" % len(body) if length else b""
    return line + b"".join(header + b"\r\n" for header in headers) + KEY + told + b"\r\n" + body


def chunked(*chunks: bytes, headers: tuple[bytes, ...] = (b"transfer-encoding: chunked",)) -> bytes:
    """A call with these bytes as its body, including chunk sizes."""
    return call(*headers, body=b"".join(chunks), length=False)


def get(path: bytes, *headers: bytes) -> bytes:
    head = b"".join(header + b"\r\n" for header in headers)
    return b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + KEY + head + b"\r\n"


CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
END = b"0\r\n\r\n"
RIGHT = (
    call(),
    call(body=BODY[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'),
    call(line=LINE.replace(b"chat/", b""), body=b'{"model":"fake","prompt":["a","b"],"n":2,"max_tokens":2}'),
    call(line=LINE.replace(b"chat/completions", b"embeddings"), body=b'{"model":"fake","input":"x"}'),
    chunked(CHUNK, END),
    get(b"/v1/models"),
    get(b"/health"),
    get(b"/metrics"),
    get(b"/openapi.json"),
    get(b"/nothing"),
    call() + call(),
)
"""Valid requests, from which mutations start."""
WORDS = (
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b": ",
        b" HTTP/1.1\r\n",
        b"HTTP/2.0",
        b"GET ",
        b"POST ",
        b"CONNECT ",
        b"PRI * ",
    ),
    *(
        b"content-length: 5\r\n",
        b"content-length: 99999999999999999999\r\n",
        b"transfer-encoding: chunked\r\n",
    ),
    *(
        b"transfer-encoding: gzip\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\nconnection: upgrade\r\n",
    ),
    *(
        b"connection: close\r\n",
        b"connection: authorization\r\n",
        b"x-a: 1\r\n x\r\n",
        b"%2e%2e/",
        b"http://x/",
    ),
    *(
        b"0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"-1\r\n",
        b"1;a=b\r\n",
        b"traceparent: 00-zz\r\n",
        b"?x=%ff",
        INNER,
    ),
    *(b'"max_tokens":1e308,', b'"max_tokens":-5,', b'"n":1000000000000,', b'"stream":1,', b'"model":"fake",'),
)

HIDING = {
    "a length and chunks": call(b"transfer-encoding: chunked", body=END + INNER),
    "chunks and a length": chunked(END, INNER, headers=(b"content-length: 4", b"transfer-encoding: chunked")),
    "two lengths": call(b"content-length: 0", body=BODY + INNER),
    "two lengths in one": chunked(INNER, headers=(b"content-length: 0, %d" % len(INNER),)),
    "a length with a sign": chunked(INNER, headers=(b"content-length: +0",)),
    "a length below zero": chunked(INNER, headers=(b"content-length: -1",)),
    "a length in hexadecimal": chunked(INNER, headers=(b"content-length: 0x0",)),
    "a length beyond all": chunked(INNER, headers=(b"content-length: 18446744073709551616",)),
    "chunks twice": chunked(
        END, INNER, headers=(b"transfer-encoding: chunked",) * 2 + (b"content-length: 5",)
    ),
    "chunks by another name": chunked(END, INNER, headers=(b"transfer-encoding: xchunked",)),
    "chunks and then another coding": chunked(END, INNER, headers=(b"transfer-encoding: chunked, identity",)),
    "chunks after a vertical tab": chunked(END, INNER, headers=(b"transfer-encoding:\x0bchunked",)),
    "chunks by a folded header": chunked(
        END, INNER, headers=(b"transfer-encoding:\r\n chunked", b"content-length: 5")
    ),
    "a blank before the colon": chunked(INNER, headers=(b"content-length : 0",)),
    "a chunk without a number": chunked(b"g\r\n", INNER),
    "a chunk below zero": chunked(b"-1\r\n", INNER),
    "a chunk beyond all": chunked(b"ffffffffffffffffff\r\n", INNER),
    "a chunk that is longer than its size": chunked(b"1\r\nab\r\n", END, INNER),
    "a chunk that ends with a line feed only": chunked(b"1\nx\n0\n\n", INNER),
    "a header with NUL": call(b"x-a: 1\x002", b"content-length: 0", body=INNER),
    "a header without a name": chunked(INNER, headers=(b": 1", b"content-length: 0")),
    "a carriage return in a header": call(b"x-a: 1\rcontent-length: 0", b"content-length: 0", body=INNER),
    "an upgrade with a body": call(b"connection: upgrade", b"upgrade: h2c", body=INNER),
}
"""Requests whose end is not where it seems; the bytes after it must not be treated as a request."""

REFUSED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a proxy's method": b"CONNECT example.org:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "another's absolute address": get(b"http://x@example.org/v1/nothing?#"),
    "all of it": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a path upwards": get(b"/../../etc/passwd"),
    "a path upwards, encoded": get(b"/v1/%2e%2e/%2e%2e/metrics%00"),
    "a path that is not UTF-8": get(b"/%ff%fe/\xc3\x28"),
    "a long path": get(b"/" + b"a" * 40_000),
    "a method of its own": b"get /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "ten thousand headers": get(b"/health", *(b"x-%d: 1" % number for number in range(10_000))),
    "a header of a megabyte": get(b"/health", b"x: " + b"a" * (1 << 20)),
    "a folded header": get(b"/nothing", b"x-a: 1\r\n  2\r\n\t3"),
    "an unexpected body": get(b"/nothing", b"content-length: 1000000"),
    "a million tokens for each of a million answers": call(
        body=BODY[:-1] + b',"n":1000000,"max_tokens":1e308}'
    ),
    "an invalid key": call(body=BODY).replace(b"sk-right", b"\xff" * 300),
}


@dataclass(frozen=True)
class Sent:
    """A client that sends its pieces one after the other. With `waits` it never sends the last one."""

    pieces: tuple[bytes, ...]
    waits: bool = False


async def exchange(port: int, sent: Sent, progress: Callable[[], None] = lambda: None) -> bytes:
    """All answers until the gateway closes; each piece sent or received is `progress`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = asyncio.ensure_future(read_all(reader, progress))
    try:
        for piece in sent.pieces[: len(sent.pieces) - sent.waits]:
            writer.write(piece)
            await writer.drain()
            progress()
            await asyncio.sleep(0)
        return await answered
    except ConnectionError:
        answered.cancel()
        # It has closed while this client was sending.
        return b""
    finally:
        writer.close()


async def read_all(reader: asyncio.StreamReader, progress: Callable[[], None]) -> bytes:
    """All bytes until the other side closes."""
    pieces = []
    while piece := await reader.read(1 << 16):
        pieces.append(piece)
        progress()
    return b"".join(pieces)


def statuses(answered: bytes) -> list[int]:
    """Statuses of consecutive answers."""
    lines = [part[:3] for part in answered.split(b"HTTP/1.1 ")[1:]]
    return [int(line) for line in lines if line.isdigit()]
