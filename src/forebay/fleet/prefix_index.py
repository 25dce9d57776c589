"""Which replica holds which prefix blocks, as seen from the requests sent to it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_SWEEP = 64
"""How many used blocks an insertion skips before it evicts one: bounds its time."""
FEW = 16
DEAD_SHARE = 1 / 8


class PrefixIndex:
    """Blocks of prompts by hash, with the replicas that hold each.

    A block's value has two bits per replica, `held` and `used since the hand passed`. Each replica has a ring
    of its capacity, in which a clock hand evicts the first block that was not used since it last passed
    (CLOCK, Corbató 1968). A prompt's blocks enter the ring last first, so that a prefix outlives what follows
    it.

    Hashes are from 0 to 2^63; those below 2^60 take the least memory. 100 replicas of 100,000 blocks take
    less than 1 GiB.
    """

    def __init__(self, capacities: Sequence[int]) -> None:
        self._table: dict[int, int] = {}
        self._rings = [array("q") for _ in capacities]
        self._hands = [0] * len(capacities)
        self._forgotten = [0] * len(capacities)
        self._capacities = list(capacities)
        self._everyone = sum(1 << (2 * replica) for replica in range(len(capacities)))
        # Values of blocks on one replica only, created once, since most blocks are such.
        self._alone = [1 << (2 * replica) for replica in range(len(capacities))]
        self._alone_used = [3 << (2 * replica) for replica in range(len(capacities))]

    def grow(self) -> None:
        replica = len(self._rings)
        self._rings.append(array("q"))
        self._hands.append(0)
        self._forgotten.append(0)
        self._capacities.append(0)
        self._everyone |= 1 << (2 * replica)
        self._alone.append(1 << (2 * replica))
        self._alone_used.append(3 << (2 * replica))

    def resize(self, replica: int, capacity: int) -> None:
        self.clear(replica)
        self._capacities[replica] = capacity

    def __len__(self) -> int:
        return len(self._table)

    def held(self, replica: int) -> int:
        """How many blocks the replica holds; takes time proportional to its capacity."""
        bit = self._alone[replica]
        return sum(1 for block in set(self._rings[replica]) if self._table.get(block, 0) & bit)

    def match(self, blocks: Sequence[int]) -> NDArray[np.float64]:
        depths = np.zeros(len(self._capacities))
        held = self._everyone
        get = self._table.get
        level = 0
        for block in blocks:
            still = get(block, 0) & held
            if still != held:
                if level:
                    self._set(depths, held ^ still, level)
                held = still
                if not held:
                    return depths
            level += 1
        self._set(depths, held, level)
        return depths

    def insert(self, replica: int, blocks: Sequence[int]) -> None:
        table, ring, size = self._table, self._rings[replica], self._capacities[replica]
        if not size:
            return
        get, held, used = table.get, self._alone[replica], self._alone_used[replica]
        hand = self._hands[replica]
        for block in reversed(blocks):
            value = get(block, 0)
            if value & held:
                if value & used != used:
                    table[block] = used if value == held else value | used
                continue
            if len(ring) < size:
                ring.append(block)
            else:
                victim = ring[hand]
                if get(victim) == held:  # the usual case, without a call: ours alone, and not used again
                    del table[victim]
                else:
                    hand = self._evict(replica, hand)
                ring[hand] = block
                hand += 1
                if hand == size:
                    hand = 0
            table[block] = value | held if value else held
        self._hands[replica] = hand

    def forget(self, replica: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._drop(replica, block)
        self._forgotten[replica] += len(blocks)
        if self._forgotten[replica] > len(self._rings[replica]) * DEAD_SHARE:
            self._close_ranks(replica)

    def clear(self, replica: int) -> None:
        for block in self._rings[replica]:
            self._drop(replica, block)
        self._rings[replica] = array("q")
        self._hands[replica] = self._forgotten[replica] = 0

    def _close_ranks(self, replica: int) -> None:
        ring, hand, held = self._rings[replica], self._hands[replica], self._alone[replica]
        newest_first = reversed(ring[hand:] + ring[:hand])
        kept = dict.fromkeys(block for block in newest_first if self._table.get(block, 0) & held)
        self._rings[replica] = array("q", reversed(kept))
        self._hands[replica] = self._forgotten[replica] = 0

    def _evict(self, replica: int, hand: int) -> int:
        table, ring = self._table, self._rings[replica]
        held, used = self._alone[replica], self._alone_used[replica]
        for _ in range(MAX_SWEEP):
            block = ring[hand]
            value = table.get(block, 0)
            if value & used != used:
                break
            table[block] = held if value == used else value ^ used ^ held
            hand = hand + 1 if hand + 1 < len(ring) else 0
        self._drop(replica, ring[hand])
        return hand

    def _drop(self, replica: int, block: int) -> None:
        value = self._table.get(block, 0)
        if value & self._alone[replica]:
            left = value & ~self._alone_used[replica]
            if left:
                self._table[block] = left
            else:
                del self._table[block]

    def _set(self, depths: NDArray[np.float64], bits: int, level: int) -> None:
        if bits.bit_count() <= FEW:
            while bits:
                low = bits & -bits
                depths[low.bit_length() >> 1] = level
                bits ^= low
        else:
            count = len(depths)
            raw = np.frombuffer(bits.to_bytes((2 * count + 7) // 8, "little"), np.uint8)
            depths[np.unpackbits(raw, count=2 * count, bitorder="little")[::2] == 1] = level
