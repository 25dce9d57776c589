"""Fills the engine's prefix cache with every prompt of a load."""

from __future__ import annotations

import asyncio

from benchmarks.peers.base import SYSTEM, event_of
from benchmarks.peers.run import Load
from forebay.engine.client import HttpEngine
from forebay.records import Message, Request, Sampling

AT_ONCE = 4
TIMEOUT_S = 60.0


def ask_all(url: str, model: str, load: Load) -> None:
    """Send each event of `load` to the engine once, like the peers will; blocks until all are answered.

    Raises the first `EngineError`.
    """
    asyncio.run(_ask_all(url, model, load))


async def _ask_all(url: str, model: str, load: Load) -> None:
    engine = HttpEngine(url, stream=False)
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(index: int) -> None:
        id = f"event-{index}"
        messages = (Message("system", SYSTEM), Message("user", event_of(id)["prompt"]))
        sampling = Sampling(max_tokens=load.max_tokens, temperature=0.0)
        async with places:
            await engine.complete(
                Request(id=id, model=model, messages=messages, sampling=sampling), timeout_s=TIMEOUT_S
            )

    try:
        await asyncio.gather(*map(ask, range(load.events)))
    finally:
        await engine.close()
