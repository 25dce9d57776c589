"""A client of a gateway that does all that a client should not; runs until its standard input ends.

    python -m benchmarks.hostile_client PORT RATE_PER_S

It opens `RATE_PER_S` connections a second and holds up to `MOST_OPEN` of them, in turn: headers that are too
large, what is no HTTP, wrong bodies, a body that comes a byte at a time, a large body that nobody needs,
and requests for more tokens than there are.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import suppress

MOST_OPEN = 500
TRICKLE_S = 0.2
TRICKLED = 100
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
GREEDY = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1e308,"n":1000000}'
DEEP = b'{"model":"fake","messages":' + b"[" * 900 + b"]" * 900 + b"}"


def call(body: bytes) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


ATTACKS = (
    HEAD + b"x-a: " + b"a" * 65_536,
    b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % number for number in range(2000)) + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    call(b"{"),
    call(DEEP),
    HEAD + b"content-length: 100000\r\n\r\n{",
    HEAD + b"content-length: 104857600\r\n\r\n" + b"x" * 262_144,
    call(b'{"model":"none","messages":[{"role":"user","content":"' + b"x" * 100_000 + b'"}]}'),
    call(GREEDY),
    b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n" * 50,
)


async def attack(port: int, raw: bytes) -> None:
    """Send `raw`, read some of what is answered, and trickle on until the gateway has had enough."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(raw)
            await writer.drain()
            for _ in range(TRICKLED):
                with suppress(asyncio.TimeoutError):
                    if not await asyncio.wait_for(reader.read(1000), TRICKLE_S):
                        return
                writer.write(b"x")
        finally:
            writer.close()


async def main(port: int, rate_per_s: float) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    running: set[asyncio.Task[None]] = set()
    for raw in itertools.cycle(ATTACKS):
        if ended.done():
            break
        if len(running) < MOST_OPEN:
            task = asyncio.create_task(attack(port, raw))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(1 / rate_per_s)
    for task in running:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
