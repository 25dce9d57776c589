from __future__ import annotations

import math
import random
from collections import OrderedDict
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ProtocolViolation
from forebay.fleet.cache_events import (
    MAX_BLOCKS,
    MAX_ITEMS,
    MAX_MESSAGE_BYTES,
    MAX_SAMPLED,
    WITNESSES,
    BlockUsage,
    CacheEvent,
    CacheHorizon,
    CacheMessage,
    CacheWatch,
    Cleared,
    Removed,
    Stored,
    read_message,
)
from forebay.fleet.prefix_index import PrefixIndex


def read(*events: Any, sequence: int = 7) -> CacheMessage:
    return read_frame(msgpack.packb([1795298088.18, list(events), 0]), sequence=sequence)


def read_frame(payload: bytes, *, sequence: int = 7) -> CacheMessage:
    return read_message([b"", sequence.to_bytes(8, "big"), payload])


def stored(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": list(range(128)),
        "block_size": 128,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **more}


def test_events_encoded_as_maps_are_read() -> None:
    message = read(removed(5), stored(1, 2**64 - 1), {"type": "AllBlocksCleared"}, sequence=2**63)
    assert message == CacheMessage(2**63, (Removed((5,)), Stored((1, 2**64 - 1)), Cleared()))


def test_events_encoded_as_arrays_by_older_servers_are_read() -> None:
    message = read(
        ["BlockStored", [b"\1" * 32, 9], None, [1, 2], 2, None],
        ["BlockStored", [3], 9, [1, 2], 2, None, "CPU"],
        ["BlockRemoved", [9], "GPU"],
        ["BlockRemoved", [9]],
        ["AllBlocksCleared"],
    )
    number = int.from_bytes(b"\1" * 8, "big")
    assert message.events == (Stored((number, 9)), Removed((9,)), Removed((9,)), Cleared())


def test_a_hash_in_another_group_is_another_block() -> None:
    first, second = read(stored(4), stored(4, group_idx=1)).events
    assert first != second
    assert read(removed(4, group_idx=1)).events == (Removed(second.blocks),)


@pytest.mark.parametrize(
    "event",
    [
        stored(1, medium="CPU"),
        removed(1, medium="STORAGE"),
        stored(1, kv_cache_spec_sliding_window=4096),
        {"type": "SomethingNew", "block_hashes": 3},
        ["SomethingNew"],
    ],
)
def test_events_of_other_caches_are_skipped(event: Any) -> None:
    assert read(event, removed(1)).events == (Removed((1,)),)


def test_event_without_hashes_adds_no_blocks() -> None:
    assert read(stored() | {"block_hashes": None}).events == (Stored(()),)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgpack.packb(5),
        msgpack.packb([1.0]),
        msgpack.packb([1.0, 5]),
        msgpack.packb({1: []}),
        msgpack.packb([1.0, [5]]),
        msgpack.packb([1.0, [[]]]),
        msgpack.packb([1.0, [stored("text")]]),
        msgpack.packb([1.0, [stored(1, group_idx=64)]]),
        msgpack.packb([1.0, [stored(1, group_idx=-1)]]),
        msgpack.packb([1.0, [{"type": "BlockRemoved"}]]),
        msgpack.packb([1.0, [removed(*([0] * (MAX_ITEMS + 1)))]]),
        msgpack.packb([1.0, []]) + b"\0",
        msgpack.packb({(1,): 2}),
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_invalid_bytes_are_rejected(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_frame(payload)


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"", bytes(8)],
        [b"", bytes(7), msgpack.packb([1.0, []])],
        [b"", bytes(8), msgpack.packb([1.0, []]), b""],
        [b"", bytes(8), bytes(MAX_MESSAGE_BYTES + 1)],
    ],
)
def test_invalid_frames_are_rejected(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        read_message(frames)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "block_hashes", "medium", "group_idx"]) | st.text(), inner, max_size=4
        )
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])
EVENTS = st.lists(
    st.tuples(KINDS, ANY, ANY).map(list)
    | st.fixed_dictionaries({"type": KINDS}, optional={"block_hashes": ANY, "group_idx": ANY, "medium": ANY})
    | ANY,
    max_size=4,
)


@given(
    st.binary(max_size=200) | ANY.map(msgpack.packb) | EVENTS.map(lambda events: msgpack.packb([1.0, events]))
)
def test_only_the_documented_error_is_raised(payload: bytes) -> None:
    try:
        message = read_frame(payload)
    except ProtocolViolation:
        return
    for event in message.events:
        assert isinstance(event, Cleared) or all(0 <= block < 2**70 for block in event.blocks)


class Publisher:
    def __init__(self, horizon: CacheHorizon) -> None:
        self.horizon = horizon
        self.now_s = 0.0
        self.sequence = 0

    def note(self, *events: CacheEvent, heard: bool = True) -> bool:
        self.now_s += 1.0
        message = CacheMessage(self.sequence, events)
        self.sequence += 1
        return heard and self.horizon.read(message, self.now_s)


@pytest.fixture
def horizon() -> CacheHorizon:
    return CacheHorizon()


@pytest.fixture
def publisher(horizon: CacheHorizon) -> Publisher:
    return Publisher(horizon)


def test_blocks_used_before_the_evicted_ones_are_gone(horizon: CacheHorizon, publisher: Publisher) -> None:
    for block in range(10):
        publisher.note(Stored((block,)))
    for block in range(3):
        publisher.note(Removed((block,)))
    assert horizon.horizon_s == 1.0, "the middle of five of which two are still unknown"
    publisher.note(Removed((3, 4)))
    assert horizon.horizon_s == 3.0


def test_single_out_of_order_eviction_has_no_effect(horizon: CacheHorizon, publisher: Publisher) -> None:
    for block in range(20):
        publisher.note(Stored((block,)))
    publisher.note(Removed(tuple(range(WITNESSES))))
    before_s = horizon.horizon_s
    publisher.note(Removed((19,)))
    assert horizon.horizon_s <= before_s + 1.0
    publisher.note(Removed((5, 6, 7)))
    assert horizon.horizon_s == 7.0


def test_unknown_blocks_have_no_effect() -> None:
    horizon = CacheHorizon()
    Publisher(horizon).note(Removed(tuple(range(100))))
    assert horizon.horizon_s == -math.inf


def test_restarted_sequence_numbers_are_a_restart(horizon: CacheHorizon, publisher: Publisher) -> None:
    publisher.sequence = 5
    assert not publisher.note(Stored((1, 2))), "the first message may have any number"
    assert not publisher.note(Stored((3,)))
    publisher.sequence = 0
    assert publisher.note(Stored((4,)))
    assert (horizon.restarts, horizon.missed, len(horizon)) == (1, 0, 1)


def test_sequence_gap_is_counted_and_loses_nothing(horizon: CacheHorizon, publisher: Publisher) -> None:
    publisher.note(Stored((1, 2, 3)))
    publisher.sequence += 4
    assert not publisher.note(Removed((1, 2, 3)))
    assert (horizon.missed, horizon.restarts, horizon.horizon_s) == (4, 0, 1.0)


def test_all_blocks_cleared_keeps_the_horizon(horizon: CacheHorizon, publisher: Publisher) -> None:
    publisher.note(Stored((1, 2, 3)))
    publisher.note(Removed((1, 2, 3)))
    assert publisher.note(Cleared(), Stored((4,)))
    assert (horizon.horizon_s, len(horizon)) == (1.0, 1)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_memory_is_bounded_for_any_hashes(seeds: list[int]) -> None:
    horizon = CacheHorizon()
    for number, seed in enumerate(seeds):
        blocks = tuple((seed << shift) % 2**64 for shift in range(64))
        horizon.read(CacheMessage(number, (Stored(blocks * 2),)), float(number))
        assert len(horizon) <= MAX_SAMPLED


def test_large_cache_is_sampled_and_its_horizon_is_kept(horizon: CacheHorizon, publisher: Publisher) -> None:
    hashes = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(20_000)]
    for at in range(0, len(hashes), 100):
        publisher.note(Stored(tuple(hashes[at : at + 100])))
    assert 500 < len(horizon) <= MAX_SAMPLED
    publisher.note(Removed(tuple(hashes[:10_000])))
    assert 97.0 <= horizon.horizon_s <= 100.0


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.booleans()), max_size=300),
)
def test_no_cached_block_is_older_than_the_horizon(capacity: int, uses: list[tuple[int, bool, bool]]) -> None:
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
        publisher.note(*events, heard=heard)
        cache[block] = publisher.now_s
        cache.move_to_end(block)
        assert not cache or min(cache.values()) >= horizon.horizon_s


def test_blocks_are_ordered_by_last_use() -> None:
    usage = BlockUsage()
    usage.used((1, 2, 3), 1.0)
    usage.used((1,), 2.0)
    assert usage.take_before(1.0) == []
    assert usage.take_before(2.0) == [2, 3]
    assert usage.take_before(2.0) == []
    assert usage.take_before(3.0) == [1]


def test_only_the_latest_blocks_are_kept() -> None:
    usage = BlockUsage()
    usage.used(range(MAX_BLOCKS + 5), 1.0)
    assert len(usage) == MAX_BLOCKS
    assert min(usage.take_before(2.0)) == 5


def test_cleared_cache_has_no_blocks() -> None:
    usage = BlockUsage()
    usage.used((1,), 1.0)
    usage.clear()
    assert usage.take_before(2.0) == []


OWN, OTHERS, ANSWERS = 0, 1 << 40, 2 << 40


class Replica:
    """A cache of `capacity` blocks that reports what it stores and evicts."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sequence = 0
        self.cache: OrderedDict[int, None] = OrderedDict()

    def use(self, *blocks: int) -> list[bytes]:
        stored, removed = [], []
        for block in blocks:
            if block not in self.cache:
                stored.append(hash_of(block))
                if len(self.cache) == self._capacity:
                    removed.append(hash_of(self.cache.popitem(last=False)[0]))
            self.cache[block] = None
        for block in reversed(blocks):  # those in front outlive those behind
            if block in self.cache:
                self.cache.move_to_end(block)
        return self.message(["BlockRemoved", removed], ["BlockStored", stored])

    def message(self, *events: list[object]) -> list[bytes]:
        self._sequence += 1
        return [b"", (self._sequence - 1).to_bytes(8, "big"), msgpack.packb([0.0, events])]


def hash_of(block: int) -> int:
    return (block * 0x9E3779B97F4A7C15) % 2**64


@pytest.mark.heavy
@pytest.mark.parametrize("others", [0.0, 0.5, 0.9])
def test_prefix_index_follows_a_cache_filled_by_others(others: float) -> None:
    # Prompts of 10 blocks, of which 5 are shared in 100 groups, some more popular; an answer is 5 more.
    dice = random.Random(1)
    replica, watch = Replica(1000), CacheWatch("r")
    told, guessed = PrefixIndex([1000]), PrefixIndex([1000])
    seen = {"told": [0, 0, 0], "guessed": [0, 0, 0]}
    for number in range(6000):
        now_s = float(number)
        base = OTHERS if dice.random() < others else OWN
        group = int(100 * dice.random() ** 2)
        prompt = [base + group * 100 + block for block in range(5)]
        prompt += [base + 1_000_000 + number * 10 + block for block in range(5)]
        if base == OWN:
            if number > 2000:
                truly = sum(block in replica.cache for block in prompt[:5])
                for name, index in (("told", told), ("guessed", guessed)):
                    believed = int(index.match(prompt)[0])
                    seen[name][0] += min(truly, believed)
                    seen[name][1] += max(0, believed - truly)
                    seen[name][2] += max(0, truly - believed)
            told.insert(0, prompt)
            guessed.insert(0, prompt)
            watch.used(prompt, now_s)
        answer = [ANSWERS + number * 10 + block for block in range(5)]
        assert not watch.receive(replica.use(*prompt, *answer), now_s)
        told.forget(0, watch.evicted([], now_s))
    (_, wrong, lost), (right_guessed, wrong_guessed, _) = seen["told"], seen["guessed"]
    assert wrong <= 0.01 * right_guessed
    assert lost <= 0.01 * right_guessed
    assert wrong_guessed > 0.3 * right_guessed, "sent prompts alone do not show it"


def test_blocks_of_requests_in_flight_are_kept() -> None:
    replica, watch = Replica(10), CacheWatch("r")
    watch.used((1, 2, 3), 0.5)
    for number in range(40):
        watch.receive(replica.use(OTHERS + number), 1.0 + number)
    assert watch.evicted([(2,), (9,)], 50.0) == [1, 3]
    for number in range(40, 80):
        watch.receive(replica.use(OTHERS + number), 51.0 + number)
    assert watch.evicted([], 200.0) == [2]


def test_invalid_messages_are_counted_and_change_nothing() -> None:
    watch = CacheWatch("r")
    watch.used((1,), 0.0)
    for frames in ([], [b"", b"", b""], [b"", bytes(8), b"\xc1"]):
        assert not watch.receive(frames, 1.0)
    assert (watch.malformed, watch.read) == (3, 0)
    assert watch.evicted([], 2.0) == []


def test_a_restart_and_a_cleared_cache_are_reported() -> None:
    replica, watch = Replica(10), CacheWatch("r")
    assert not watch.receive(replica.use(1), 1.0)
    assert watch.receive(replica.message(["AllBlocksCleared"]), 2.0)
    assert watch.receive(Replica(10).use(1), 3.0)
