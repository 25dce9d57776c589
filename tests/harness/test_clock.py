"""Virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness.clock import LoopClock, ManualClock, run_virtual


async def test_time_passes_only_when_told_to() -> None:
    clock = ManualClock(monotonic_s=5.0, wall_ms=1000)
    assert (clock.monotonic_s(), clock.wall_ms()) == (5.0, 1000)
    clock.advance(1.5)
    await clock.sleep(0.25)
    assert (clock.monotonic_s(), clock.wall_ms()) == (6.75, 2750)
    assert clock.slept_s == [0.25]


def test_it_never_goes_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        ManualClock().advance(-1.0)


def test_an_hour_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        clock = LoopClock(asyncio.get_running_loop())
        seen: list[tuple[str, float]] = []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, clock.monotonic_s()))

        await asyncio.gather(one("late", 3600.0), one("soon", 0.25), one("at once", 0.0))
        return seen

    assert run_virtual(main()) == [("at once", 0.0), ("soon", 0.25), ("late", 3600.0)]


def test_what_would_wait_for_ever_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="never end"):
        run_virtual(main())


def test_tasks_that_are_left_are_ended() -> None:
    ended: list[bool] = []

    async def left() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(True)

    async def main() -> None:
        main.task = asyncio.ensure_future(left())  # type: ignore[attr-defined]
        await asyncio.sleep(1.0)

    run_virtual(main())
    assert ended == [True]
