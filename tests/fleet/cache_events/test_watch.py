"""What a replica evicts, in our own blocks: beside a cache that others use too."""

from __future__ import annotations

import random
from collections import OrderedDict

import msgpack
import pytest

from forebay.fleet.cache_events.watch import CacheWatch
from forebay.fleet.prefix_index import PrefixIndex

OWN, OTHERS, ANSWERS = 0, 1 << 40, 2 << 40


class Replica:
    """A cache of `capacity` blocks that tells of what it stores and evicts."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sequence = 0
        self.cache: OrderedDict[int, None] = OrderedDict()

    def use(self, *blocks: int) -> list[bytes]:
        """A prompt of these blocks; gives the message."""
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


@pytest.mark.parametrize("others", [0.0, 0.5, 0.9])
def test_the_index_follows_a_cache_that_others_fill(others: float) -> None:
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
        assert not watch.heard(replica.use(*prompt, *answer), now_s)
        told.forget(0, watch.evicted([], now_s))
    (_, wrong, lost), (right_guessed, wrong_guessed, _) = seen["told"], seen["guessed"]
    assert wrong <= 0.01 * right_guessed
    assert lost <= 0.01 * right_guessed
    assert wrong_guessed > 0.3 * right_guessed, "what is sent alone does not tell"


def test_blocks_of_requests_in_flight_stay() -> None:
    replica, watch = Replica(10), CacheWatch("r")
    watch.used((1, 2, 3), 0.5)
    for number in range(40):
        watch.heard(replica.use(OTHERS + number), 1.0 + number)
    assert watch.evicted([(2,), (9,)], 50.0) == [1, 3]
    assert watch.counts.forgotten == 2
    for number in range(40, 80):
        watch.heard(replica.use(OTHERS + number), 51.0 + number)
    assert watch.evicted([], 200.0) == [2]


def test_wrong_messages_are_counted_and_change_nothing() -> None:
    watch = CacheWatch("r")
    watch.used((1,), 0.0)
    for frames in ([], [b"", b"", b""], [b"", bytes(8), b"\xc1"]):
        assert not watch.heard(frames, 1.0)
    assert (watch.counts.malformed, watch.counts.read) == (3, 0)
    assert watch.evicted([], 2.0) == []


def test_a_restart_and_a_cleared_cache_are_told() -> None:
    replica, watch = Replica(10), CacheWatch("r")
    assert not watch.heard(replica.use(1), 1.0)
    assert watch.heard(replica.message(["AllBlocksCleared"]), 2.0)
    assert watch.heard(Replica(10).use(1), 3.0)
    assert watch.counts.restarts == 1
