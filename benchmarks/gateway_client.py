"""The client of `python -m benchmarks gateway`: reads an `Order` from standard input, prints its answers."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from dataclasses import astuple, dataclass

import aiohttp
import orjson


@dataclass(frozen=True, slots=True)
class Order:
    """`count` requests numbered from `first`, at `rate_per_s`, to `urls` in turn."""

    urls: tuple[str, ...]
    first: int
    count: int
    rate_per_s: float
    prompt_chars: int
    model: str = "fake"
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, and seconds from when it was due to its first and last byte."""

    status: int
    first_ms: float
    whole_ms: float


def body_of(index: int, order: Order) -> bytes:
    text = f"Post {index}: " + "all talk of the harbour today. " * (order.prompt_chars // 31)
    return orjson.dumps(
        {
            "model": order.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": order.max_tokens,
            "stream": True,
        }
    )


async def drive(order: Order) -> list[Answer]:
    """Send all on schedule, whether or not answers arrive; returns answers in the order of their ends."""
    connector = aiohttp.TCPConnector(limit=0)
    seen: list[Answer] = []
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def one(index: int, due_s: float) -> None:
            url = order.urls[index % len(order.urls)] + "/v1/chat/completions"
            headers = {"Content-Type": "application/json", "X-Request-Id": f"request-{index}"}
            body = body_of(index, order)
            async with session.post(url, data=body, headers=headers) as response:
                await response.content.readany()
                first_s = time.monotonic()
                async for _ in response.content.iter_any():
                    pass
                ended_s = time.monotonic()
            seen.append(Answer(response.status, (first_s - due_s) * 1000, (ended_s - due_s) * 1000))

        tasks = []
        start_s = time.monotonic() + 0.1
        for at in range(order.count):
            due_s = start_s + at / order.rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(one(order.first + at, due_s)))
        await asyncio.gather(*tasks)
    return seen


def main() -> None:
    fields = json.load(sys.stdin)
    order = Order(**{**fields, "urls": tuple(fields["urls"])})
    gc.freeze()
    print(json.dumps([astuple(answer) for answer in asyncio.run(drive(order))]))


if __name__ == "__main__":
    main()
