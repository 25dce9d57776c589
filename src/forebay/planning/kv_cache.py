"""The KV cache of a request, by the rules of vLLM's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

BLOCK_TOKENS = 16
"""vLLM's block on GPUs, in tokens."""


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers that keep the same, over all ranks of a replica.

    Attributes:
        layers: How many.
        token_bytes: Bytes of a token in one layer; 0 for recurrent layers.
        kv_heads: Heads that `token_bytes` are for; 0: a latent for all heads, or no cache of tokens.
        window: Tokens that are kept at most; 0: all.
        chunked: Whether the window is a fixed chunk, not one that slides.
        state_bytes: Bytes of one state of a request in a recurrent layer, whatever its length.
        states: States of a request that vLLM keeps in a recurrent layer.
    """

    layers: int
    token_bytes: float = 0.0
    kv_heads: int = 0
    window: int = 0
    chunked: bool = False
    state_bytes: float = 0.0
    states: int = 0

    def held_bytes(self, tokens: float) -> float:
        kept = min(tokens, self.window) if self.window else tokens
        return self.layers * (self.token_bytes * kept + self.state_bytes)

    def blocks(self, tokens: int, step_tokens: int, block: int) -> int:
        if self.state_bytes:
            return self.states
        if not self.window:
            return -(-tokens // block)
        if self.chunked:
            return -(-min(self.window + step_tokens, tokens) // block)
        # One more, as a window rarely begins at a block boundary.
        return -(-min(self.window - 1 + step_tokens, tokens) // block) + 1


def reserved_bytes(
    kinds: Sequence[CachedLayers], tokens: int, step_tokens: int, block: int = BLOCK_TOKENS
) -> float:
    """Bytes that vLLM counts for a request of `tokens` tokens in its log of the maximum concurrency.

    Args:
        kinds: The layers.
        tokens: Tokens of the request.
        step_tokens: Tokens that steps in progress may add: `max_num_batched_tokens`, times two with
            asynchronous scheduling.
        block: Tokens of a block.
    """
    page = block * max(one.token_bytes for one in kinds)
    if state := max(one.state_bytes for one in kinds):
        # vLLM enlarges blocks of attention until a state fits into one.
        block *= ceil(state / page)
        page *= ceil(state / page)
    fewest, most = min(one.layers for one in kinds), max(one.layers for one in kinds)
    group = most if most < 1.5 * fewest else fewest
    blocks = 0
    for one in kinds:
        # Blocks of all layers have the same bytes: those of smaller heads hold more tokens, or have a gap.
        wider = page / (block * one.token_bytes) if one.token_bytes else 1.0
        tokens_each = int(block * wider) if wider.is_integer() else block
        blocks += -(-one.layers // group) * one.blocks(tokens, step_tokens, tokens_each)
    return group * blocks * page
