"""The reference: the engine driven by the client alone, at the same concurrency."""

from __future__ import annotations

import asyncio
import time

from benchmarks.figures import Seen
from benchmarks.workload import Workload, request_of

TIMEOUT_S = 120.0


async def drive(load: Workload) -> list[Seen]:
    """Send every event of `load` when it is due and a slot is free; returns the answers."""
    engine = load.engine()()
    slots = asyncio.Semaphore(load.capacity)
    seen: list[Seen] = []
    start_s = time.monotonic()

    async def one(index: int, sent_s: float) -> None:
        try:
            completion = await engine.complete(request_of(load, index), timeout_s=TIMEOUT_S)
        finally:
            slots.release()
        arrived_s = time.monotonic()
        tokens = completion.usage.completion_tokens
        seen.append(Seen(index, sent_s, arrived_s, completion.timing.latency_s, tokens))

    tasks = []
    try:
        for index in range(load.events):
            if load.rate_per_s is not None:
                await asyncio.sleep(max(0.0, start_s + index / load.rate_per_s - time.monotonic()))
            sent_s = time.monotonic()
            await slots.acquire()
            tasks.append(asyncio.create_task(one(index, sent_s)))
        await asyncio.gather(*tasks)
    finally:
        await engine.close()
    return seen
