"""A model of a prefix cache: which leading blocks of a prompt were seen before."""

from __future__ import annotations

from collections import OrderedDict


class PrefixCache:
    """Blocks of text, each known by itself and all text before it; least recently used out first."""

    def __init__(self, block_chars: int, max_blocks: int) -> None:
        self._block_chars = block_chars
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, text: str) -> int:
        """How many leading characters of `text` are cached; from now on all its whole blocks are."""
        if not self._max_blocks:
            return 0
        chain = 0
        cached = 0
        hit = True
        for start in range(0, len(text) - self._block_chars + 1, self._block_chars):
            chain = hash((chain, text[start : start + self._block_chars]))
            hit = hit and chain in self._blocks
            if hit:
                cached += self._block_chars
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
        return cached
