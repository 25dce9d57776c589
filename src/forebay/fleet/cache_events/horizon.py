"""How far back a replica's cache reaches, by its own word."""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

from forebay.fleet.cache_events.message import CacheMessage, Cleared, Removed, Stored

MAX_SAMPLED = 2048
"""Blocks of a replica whose moment is remembered: a sample by hash, halved whenever it grows beyond."""
WITNESSES = 5
"""Evictions of which the middle one counts: a copy of a block that is still used says nothing."""


class CacheHorizon:
    """The moment before which nothing is cached any more that was not used since.

    The blocks in the messages are of tokens and ours are of text: none can be told to be the other. But an
    engine evicts what it has not used for longest, whoever used it: once a block is evicted that was stored
    at a moment, all that was last used before that moment is gone. `horizon_s` is such a moment, on the clock
    of those passed in. It never goes back, and whatever was missed can only leave it too early.

    Only a sample of the blocks is remembered, chosen by hash, as a fixed share of all (spatial sampling,
    Waldspurger and others 2015): memory is bounded whatever the size of the cache.
    """

    def __init__(self) -> None:
        self.horizon_s = -math.inf
        self.missed = 0
        """Messages that were published and did not arrive."""
        self.restarts = 0
        self._next: int | None = None
        self._moments: dict[int, float] = {}
        self._share_bits = 0
        self._evicted: deque[float] = deque([-math.inf] * WITNESSES, WITNESSES)

    def __len__(self) -> int:
        """How many blocks are remembered."""
        return len(self._moments)

    def read(self, message: CacheMessage, now_s: float) -> bool:
        """Count a message in; whether the replica has lost all that it had cached.

        It has where it says so, and where its sequence numbers begin anew: it was started again. After a gap
        the horizon stays, and what arrives from then on moves it.
        """
        lost = False
        if self._next is not None and message.sequence < self._next:
            self.restarts += 1
            self.clear()
            lost = True
        elif self._next is not None:
            self.missed += message.sequence - self._next
        self._next = message.sequence + 1
        for event in message.events:
            if isinstance(event, Stored):
                self._store(event.blocks, now_s)
            elif isinstance(event, Removed):
                self._remove(event.blocks)
            elif isinstance(event, Cleared):
                self.clear()
                lost = True
        return lost

    def clear(self) -> None:
        """Nothing is cached any more; the horizon stays where it is."""
        self._moments.clear()
        self._share_bits = 0
        self._evicted.extend([-math.inf] * WITNESSES)

    def _store(self, blocks: tuple[int, ...], now_s: float) -> None:
        mask = (1 << self._share_bits) - 1
        for block in blocks:
            if block & mask == 0:
                self._moments[block] = now_s
        while len(self._moments) > MAX_SAMPLED and self._share_bits < 64:
            self._share_bits += 1
            mask = (1 << self._share_bits) - 1
            self._moments = {block: at_s for block, at_s in self._moments.items() if block & mask == 0}

    def _remove(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            moment_s = self._moments.pop(block, None)
            if moment_s is not None:
                self._evicted.append(moment_s)
                self.horizon_s = max(self.horizon_s, median_low(self._evicted))
