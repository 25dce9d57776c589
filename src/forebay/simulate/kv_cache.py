"""The prefix cache of a simulated replica: blocks in use, and idle ones in the order of their last use."""

from __future__ import annotations

from collections import OrderedDict


class PrefixCache:
    """Blocks of prompts by hash. A block in use stays; an idle one stays until its room is needed."""

    __slots__ = ("idle", "users")

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        """How many running sequences use each block in use."""
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that are kept although nobody uses them, the one used longest ago first."""

    def match(self, blocks: tuple[int, ...]) -> tuple[int, int]:
        """How many blocks from the first on are here, and how many of all nobody uses yet."""
        users, idle = self.users, self.idle
        hits = unused = 0
        missed = False
        for block in blocks:
            if block not in users:
                unused += 1
                missed = missed or block not in idle
            hits += not missed
        return hits, unused

    def pin(self, blocks: tuple[int, ...]) -> None:
        """Take blocks into use. Those that are not here are now."""
        users, idle = self.users, self.idle
        for block in blocks:
            if block in users:
                users[block] += 1
            else:
                users[block] = 1
                if block in idle:
                    del idle[block]

    def unpin(self, blocks: tuple[int, ...], computed: int) -> None:
        """Give blocks back, the last first, so that a prefix outlives what follows it.

        Blocks from `computed` on hold nothing yet and are forgotten, unless somebody else uses them.
        """
        users, idle = self.users, self.idle
        at = len(blocks)
        for block in reversed(blocks):
            at -= 1
            left = users[block] - 1
            if left:
                users[block] = left
            else:
                del users[block]
                if at < computed:
                    idle[block] = None

    def evict(self, blocks: int) -> None:
        """Forget the `blocks` idle blocks that were used longest ago."""
        pop = self.idle.popitem
        for _ in range(min(blocks, len(self.idle))):
            pop(last=False)
