"""Duration and speed of a scripted replica's work, and its possible work."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import run_virtual

from forebay.engine.protocol import KV_TRANSFER
from forebay.fleet.disaggregated import PREFILL_PARAMS
from forebay.testing.replica.asked import ParsedRequest, read_body
from forebay.testing.replica.work import KvCaches, ReplicaWork, ScriptedPrefixCache


def asked(prompt: str, params: object) -> ParsedRequest:
    return read_body(orjson.dumps({"model": "m", "prompt": prompt, KV_TRANSFER: params}), chat=False)


def test_kv_cache_is_read_in_time_and_for_the_same_prompt() -> None:
    caches = KvCaches()
    place = caches.give(asked("Why?", PREFILL_PARAMS), "http://p:1", until_s=5.0)
    assert not caches.read(asked("Why?", place), now_s=5.0)
    assert caches.read(asked("Why?", place), now_s=5.1)
    assert caches.read(asked("How?", place), now_s=1.0)
    assert list(caches.reads.values()) == [3]


def test_leading_blocks_seen_before_are_cached() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=100)
    assert cache.take("aaaabbbbcc") == 0
    assert cache.take("aaaabbbbcc") == 8
    assert cache.take("aaaabbbbdddd") == 8
    assert cache.take("aaaabbbxcccc") == 4
    assert cache.take("xaaabbbbcccc") == 0
    assert cache.take("aaa") == 0


def test_the_same_block_after_another_text_is_another_block() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=100)
    cache.take("aaaabbbb")
    assert cache.take("bbbb") == 0


def test_least_recently_used_block_is_evicted_first() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=2)
    cache.take("aaaa")
    cache.take("bbbb")
    cache.take("aaaa")
    cache.take("cccc")
    assert cache.take("aaaa") == 4
    assert cache.take("bbbb") == 0


@given(st.lists(st.text(alphabet="ab", max_size=30), max_size=30), st.integers(1, 5), st.integers(1, 8))
def test_a_hit_is_whole_blocks_of_the_text_and_memory_is_bounded(
    texts: list[str], block_chars: int, max_blocks: int
) -> None:
    cache = ScriptedPrefixCache(block_chars, max_blocks)
    for text in texts:
        hit = cache.take(text)
        assert hit % block_chars == 0
        assert hit <= len(text)
        assert len(cache._blocks) <= max_blocks


def test_work_continues_at_a_new_speed() -> None:
    async def main() -> tuple[float, tuple[float, float, float]]:
        work = ReplicaWork(slots=2)
        loop = asyncio.get_running_loop()
        with work.running() as done:
            doing = asyncio.ensure_future(work.do(10.0))
            await asyncio.sleep(4.0)
            work.speed = 0.1
            await asyncio.sleep(20.0)
            work.speed = 2.0
            await doing
            done()
        return loop.time(), work.times

    # Four seconds of work at speed 1, two at 1/10, the last four at 2.
    ended_s, (could_s, spent_s, wasted_s) = run_virtual(main())
    assert ended_s == pytest.approx(26.0)
    assert could_s == pytest.approx(20.0)
    assert (spent_s, wasted_s) == (pytest.approx(10.0), 0.0)


def test_unused_work_counts_as_wasted() -> None:
    async def main() -> tuple[float, float, float]:
        work = ReplicaWork(slots=1)
        with work.running() as done:
            await work.do(2.0)
            done()
        with work.running():
            await work.do(3.0)
        return work.times

    assert run_virtual(main()) == pytest.approx((5.0, 5.0, 3.0))


def test_each_request_makes_the_others_slower() -> None:
    async def main() -> list[float]:
        work = ReplicaWork(crowding=0.5)
        loop = asyncio.get_running_loop()

        async def one(after_s: float, seconds: float) -> float:
            await asyncio.sleep(after_s)
            with work.running():
                await work.do(seconds)
            return loop.time()

        return await asyncio.gather(one(0.0, 3.0), one(1.0, 2.0))

    # Alone for a second; then both at 2/3, three seconds for two of work.
    assert run_virtual(main()) == pytest.approx([4.0, 4.0])


def test_nothing_progresses_at_speed_0() -> None:
    async def main() -> bool:
        work = ReplicaWork()
        work.speed = 0.0
        with work.running():
            doing = asyncio.ensure_future(work.do(0.001))
            await asyncio.sleep(1000.0)
            moved = doing.done()
            work.speed = 1.0
            await doing
        return moved

    assert not run_virtual(main())


def test_abandoned_work_blocks_nothing() -> None:
    async def main() -> float:
        work = ReplicaWork(slots=1)
        with work.running():
            gone = asyncio.ensure_future(work.do(1.0))
            stays = asyncio.ensure_future(work.do(2.0))
            await asyncio.sleep(0.5)
            gone.cancel()
            await stays
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(2.0)


def test_without_blocks_nothing_is_cached() -> None:
    cache = ScriptedPrefixCache(block_chars=4, max_blocks=0)
    cache.take("aaaa")
    assert cache.take("aaaa") == 0
