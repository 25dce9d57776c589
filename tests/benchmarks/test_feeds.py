"""A feed with a variable rate: what is due when, and what a client receives."""

from __future__ import annotations

import asyncio
import math

import orjson
from aiohttp.test_utils import TestClient, TestServer
from benchmarks.cost import started_feed
from benchmarks.feeds import Pace, PacedFeed
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.feeds.sse import SseFeed


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 10), max_size=20))
def test_number_of_due_events_follows_the_time(rate_per_s: float, steps: list[float]) -> None:
    time = Time()
    pace = Pace(time)
    assert (pace.take(), pace.wait_s()) == (0, None)
    pace.set(rate_per_s)
    taken = pace.take()
    assert taken == 1, "the first is due at once"
    for step_s in steps:
        time.now_s += step_s
        taken += pace.take()
        assert taken == math.floor((time.now_s - 100.0) * rate_per_s) + 1
        wait_s = pace.wait_s()
        assert wait_s is not None
        assert 0 <= wait_s <= 1 / rate_per_s + 1e-9


async def _read(url: str, cursor: str | None, count: int) -> list[tuple[str, bytes]]:
    found = []
    async for received in SseFeed(url).read(cursor):
        found.append((received.cursor, received.raw))
        if len(found) == count:
            break
    return found


def test_client_reads_at_the_rate_and_resumes() -> None:
    with started_feed() as feed:
        feed.pace(math.inf)
        whole = asyncio.run(_read(feed.url, None, 2500))
        feed.pace(1000)
        again = asyncio.run(_read(feed.url, whole[9][0], 5))
    assert [orjson.loads(cursor)[0] for cursor, _ in whole] == [str(n) for n in range(2500)]
    assert len({data for _, data in whole}) > 900
    assert [data for _, data in again] == [data for _, data in whole[10:15]]


class Counted(Pace):
    """Counts calls that ask for due events."""

    asked = 0

    def take(self) -> int:
        self.asked += 1
        return super().take()


async def test_a_waiting_client_gets_a_new_rate_without_asking() -> None:
    pace = Counted()
    async with TestClient(TestServer(PacedFeed(pace).application())) as client:
        response = await client.get("/stream")
        assert await response.content.readuntil(b"\n\n") == b":ok\n\n"
        await rest()
        asked = pace.asked
        pace.set(1e-9)
        assert (await response.content.readuntil(b"\n\n")).startswith(b"id: 0\n")
        pace.set(0.0)
        await rest()
        assert pace.asked <= asked + 3
        response.close()


async def rest() -> None:
    """Run other tasks until all are idle."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_new_rate_begins_again() -> None:
    time = Time()
    pace = Pace(time)
    pace.set(100.0)
    assert pace.take() == 1
    time.now_s += 10
    assert pace.wait_s() == 0.0
    pace.set(1.0)
    assert pace.take() == 1, "what was due before is forgotten"
    assert pace.wait_s() == 1.0
    pace.set(math.inf)
    assert pace.take() > 1
    assert pace.wait_s() == 0.0
    pace.set(0.0)
    assert (pace.take(), pace.wait_s()) == (0, None)
