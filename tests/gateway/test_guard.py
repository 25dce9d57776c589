"""What ends a request from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.gateway.guard import HungUp, TimeLimit, TimeOver, UntilHungUp


async def test_time_over() -> None:
    with pytest.raises(TimeOver), TimeLimit(0.01):
        await asyncio.Event().wait()
    # The task itself goes on, and may be cancelled later.
    await asyncio.sleep(0)


async def test_time_enough() -> None:
    with TimeLimit(60.0):
        await asyncio.sleep(0)
    with TimeLimit(float("inf")):
        await asyncio.sleep(0)


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def wait() -> None:
        with TimeLimit(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_client_hangs_up() -> None:
    messages: list[dict[str, Any]] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    with pytest.raises(HungUp):
        async with UntilHungUp(receive):
            await asyncio.Event().wait()


async def test_the_client_stays() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with UntilHungUp(receive):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= 2
