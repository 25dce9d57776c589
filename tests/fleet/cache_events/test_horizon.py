"""How far back a cache reaches, held against a cache that evicts what was not used for longest."""

from __future__ import annotations

import math
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.cache_events.message import CacheEvent, CacheMessage, Cleared, Removed, Stored
from forebay.fleet.cache_events.watch import MAX_SAMPLED, WITNESSES, CacheHorizon


class Publisher:
    """Messages with rising numbers, each a second after the other."""

    def __init__(self, horizon: CacheHorizon) -> None:
        self.horizon = horizon
        self.now_s = 0.0
        self.sequence = 0

    def say(self, *events: CacheEvent, heard: bool = True) -> bool:
        self.now_s += 1.0
        message = CacheMessage(self.sequence, events)
        self.sequence += 1
        return heard and self.horizon.read(message, self.now_s)


def test_what_was_used_before_the_evicted_blocks_is_gone() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    for block in range(10):
        publisher.say(Stored((block,)))
    for block in range(3):
        publisher.say(Removed((block,)))
    assert horizon.horizon_s == 1.0, "the middle of five of which two are still unknown"
    publisher.say(Removed((3, 4)))
    assert horizon.horizon_s == 3.0


def test_a_single_eviction_out_of_turn_says_nothing() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    for block in range(20):
        publisher.say(Stored((block,)))
    publisher.say(Removed(tuple(range(WITNESSES))))
    before_s = horizon.horizon_s
    publisher.say(Removed((19,)))
    assert horizon.horizon_s <= before_s + 1.0
    publisher.say(Removed((5, 6, 7)))
    assert horizon.horizon_s == 7.0


def test_blocks_that_were_never_heard_of_say_nothing() -> None:
    horizon = CacheHorizon()
    Publisher(horizon).say(Removed(tuple(range(100))))
    assert horizon.horizon_s == -math.inf


def test_a_sequence_that_begins_anew_is_a_restart() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    publisher.sequence = 5
    assert not publisher.say(Stored((1, 2))), "the first message may have any number"
    assert not publisher.say(Stored((3,)))
    publisher.sequence = 0
    assert publisher.say(Stored((4,)))
    assert (horizon.restarts, horizon.missed, len(horizon)) == (1, 0, 1)


def test_a_gap_is_counted_and_loses_nothing() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    publisher.say(Stored((1, 2, 3)))
    publisher.sequence += 4
    assert not publisher.say(Removed((1, 2, 3)))
    assert (horizon.missed, horizon.restarts, horizon.horizon_s) == (4, 0, 1.0)


def test_all_cleared_forgets_the_blocks_and_not_the_horizon() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    publisher.say(Stored((1, 2, 3)))
    publisher.say(Removed((1, 2, 3)))
    assert publisher.say(Cleared(), Stored((4,)))
    assert (horizon.horizon_s, len(horizon)) == (1.0, 1)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_memory_is_bounded_whatever_the_hashes(seeds: list[int]) -> None:
    horizon = CacheHorizon()
    for number, seed in enumerate(seeds):
        blocks = tuple((seed << shift) % 2**64 for shift in range(64))
        horizon.read(CacheMessage(number, (Stored(blocks * 2),)), float(number))
        assert len(horizon) <= MAX_SAMPLED


def test_a_large_cache_is_sampled_and_its_horizon_still_known() -> None:
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    hashes = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(20_000)]
    for at in range(0, len(hashes), 100):
        publisher.say(Stored(tuple(hashes[at : at + 100])))
    assert 500 < len(horizon) <= MAX_SAMPLED
    publisher.say(Removed(tuple(hashes[:10_000])))
    assert 97.0 <= horizon.horizon_s <= 100.0


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), max_size=300),
)
def test_nothing_that_is_cached_was_last_used_before_the_horizon(
    capacity: int, uses: list[tuple[int, bool, bool]]
) -> None:
    # Each use stores a block or hits it; hits may be announced; messages may be lost.
    horizon = CacheHorizon()
    publisher = Publisher(horizon)
    cache: OrderedDict[int, float] = OrderedDict()
    for block, announced, heard in uses:
        events: list[CacheEvent] = []
        if block not in cache and len(cache) == capacity:
            events.append(Removed((cache.popitem(last=False)[0],)))
        if block not in cache or announced:
            events.append(Stored((block,)))
        publisher.say(*events, heard=heard)
        cache[block] = publisher.now_s
        cache.move_to_end(block)
        assert not cache or min(cache.values()) >= horizon.horizon_s
