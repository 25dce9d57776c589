"""When each text block was last used at a replica."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_BLOCKS = 16_384
"""Blocks of a replica whose last use is known, the latest ones: about two million tokens."""


class BlockUsage:
    """Text blocks in the order of their last use, `MAX_BLOCKS` at most."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def used(self, blocks: Iterable[int], now_s: float) -> None:
        """These were used now. A moment before the last one only delays what `take_before` gives."""
        used = self._used
        for block in blocks:
            used[block] = now_s
            used.move_to_end(block)
        while len(used) > MAX_BLOCKS:
            used.popitem(last=False)

    def take_before(self, moment_s: float) -> list[int]:
        """Those last used before `moment_s`, no longer kept here."""
        taken = []
        while self._used:
            block, at_s = next(iter(self._used.items()))
            if at_s >= moment_s:
                break
            del self._used[block]
            taken.append(block)
        return taken

    def clear(self) -> None:
        self._used.clear()
