"""A hostile client of a gateway; prints a line when it starts and runs until its standard input ends.

python -m benchmarks.hostile_client PORT WAY
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import orjson

from forebay.testing.script import ANSWERS

MAX_OPEN = 500
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
GREEDY = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1e308,"n":1000000}'
DEEP = b'{"model":"fake","messages":' + b"[" * 900 + b"]" * 900 + b"}"
READ_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Way:
    """A hostile behaviour: opens `per_s` connections per second and sends one of `requests` on each.

    A connection is closed after `patience_s`, or when the gateway closes it. `trickle_s`: send another byte
    at this interval. Without `reads`, the answer is never read.
    """

    requests: tuple[bytes, ...]
    per_s: float = 20.0
    patience_s: float = 1.0
    trickle_s: float | None = None
    reads: bool = True


def call(body: bytes, headers: bytes = b"") -> bytes:
    return HEAD + headers + b"content-length: %d\r\n\r\n" % len(body) + body


def prompts(faults: Iterable[str]) -> tuple[bytes, ...]:
    """Streamed chats for which the scripted replica has these faults; an empty name means a good answer."""
    return tuple(
        call(
            orjson.dumps(
                {
                    "model": "fake",
                    "messages": [{"role": "user", "content": f"((fault:{fault}))" if fault else "Hello"}],
                    "max_tokens": 16,
                    "stream": True,
                }
            ),
            b"connection: close\r\n",
        )
        for fault in faults
    )


def large(item: bytes) -> bytes:
    """A chat of 2 MB that is slow to read."""
    begin = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1,"tools":['
    return call(begin + item * ((2_000_000 - len(begin)) // len(item)) + b"1]}")


MALFORMED = (
    HEAD + b"x-a: " + b"a" * 65_536,
    b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % number for number in range(2000)) + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    call(b"{"),
    call(DEEP),
    HEAD + b"content-length: 104857600\r\n\r\n" + b"x" * 262_144,
    call(b'{"model":"none","messages":[{"role":"user","content":"' + b"x" * 100_000 + b'"}]}'),
    call(GREEDY),
    b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50,
)

WAYS = {
    "as others": Way(prompts([""])),
    "malformed": Way(MALFORMED, per_s=50.0, patience_s=20.0, trickle_s=0.2),
    "large bodies": Way(tuple(map(large, (b"[],", b"1,", b'"a",', b"1.5,"))), patience_s=20.0),
    "slow body": Way(
        (HEAD + b"content-length: 100000\r\n\r\n{",), per_s=50.0, patience_s=20.0, trickle_s=0.2
    ),
    "hangs up": Way(prompts([""]), patience_s=0.06),
    "reads nothing": Way(prompts(["huge"]), per_s=2.0, patience_s=20.0, reads=False),
    "refused": Way(prompts(["401", "403"])),
    "bad request": Way(prompts(["400", "404", "422", "too_long"])),
    "busy": Way(prompts(["429", "503"])),
    "error": Way(prompts(["500", "502", "504", "error"])),
    "cut": Way(prompts(["cut", "refuse"])),
    "no stream": Way(prompts(["garbage", "binary"])),
    "no answer": Way(prompts(["hang"])),
    "odd answer": Way(prompts(sorted(ANSWERS))),
    "endless": Way(prompts(["huge"]), per_s=2.0),
}
"""`as others` sends normal requests: how much the others' latency changes with the load alone."""


async def attack(port: int, way: Way, request: bytes) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            parts = [asyncio.sleep(way.patience_s) if not way.reads else _read_all(reader)]
            if way.trickle_s is not None:
                parts.append(_trickle(writer, way.trickle_s))
            tasks = [asyncio.ensure_future(part) for part in parts]
            try:
                await asyncio.wait(tasks, timeout=way.patience_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(READ_BYTES):
        pass


async def _trickle(writer: asyncio.StreamWriter, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        writer.write(b"x")
        await writer.drain()


async def main(port: int, way: Way) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print("started", flush=True)
    running: set[asyncio.Task[None]] = set()
    for request in itertools.cycle(way.requests):
        if ended.done():
            break
        if len(running) < MAX_OPEN:
            task = asyncio.create_task(attack(port, way, request))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(1 / way.per_s)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    # Its own computing must not slow down the others: an attacker has another machine.
    os.nice(19)
    asyncio.run(main(int(sys.argv[1]), WAYS[sys.argv[2]]))
