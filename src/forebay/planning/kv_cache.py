"""The KV cache of a request, by the rules of vLLM's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from forebay.planning.defaults import Fields, type_bytes_of

BLOCK_TOKENS = 16
"""vLLM's block on GPUs."""


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers that cache alike, over all ranks.

    `token_bytes`: of a token in one layer; 0 if recurrent. `kv_heads` 0: a latent for all heads. `window`:
    most tokens kept; 0: all. `chunked`: the window does not slide. `states`: how many `state_bytes` vLLM
    keeps of a request.
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
    """Bytes by which vLLM computes the maximum concurrency in its log.

    `step_tokens`: `max_num_batched_tokens`, twice with asynchronous scheduling.
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


DELTA_NET = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
MAMBA_2 = frozenset(("granitemoehybrid", "nemotron_h"))
STATE_TYPES = {"qwen3_5_text": "mamba_ssm_dtype", "qwen3_5_moe_text": "mamba_ssm_dtype",
               "nemotron_h": "mamba_ssm_cache_dtype"}  # fmt: skip
"""The field with the state's number type, if vLLM reads one."""


def states_of(kind: str) -> int:
    """With prefix caching, vLLM's default. Mamba-2 has one more, for a prefix that ends within a step."""
    return 3 if kind in MAMBA_2 else 2


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """One layer: weights, the convolution's state in the model's type, the recurrent state."""

    weights: int
    convolution: int
    state: int


def recurrent_of(found: Fields, kind: str) -> RecurrentLayer:
    hidden = found.number("hidden_size")
    if kind in DELTA_NET:
        return _delta_net(found, hidden)
    nemotron = kind == "nemotron_h"
    heads = found.number("mamba_num_heads" if nemotron else "mamba_n_heads")
    inner = heads * found.number("mamba_head_dim") if nemotron else found.number("mamba_expand") * hidden
    groups = found.number("n_groups" if nemotron else "mamba_n_groups")
    state = found.number("ssm_state_size" if nemotron else "mamba_d_state")
    kernel = found.number("conv_kernel" if nemotron else "mamba_d_conv")
    mixed = inner + 2 * groups * state
    weights = hidden * (mixed + 2 * inner + heads) + mixed * kernel
    return RecurrentLayer(weights, mixed * (kernel - 1), inner * state)


def state_bytes_of(found: Fields, kind: str, value_bytes: float) -> float:
    """Per request and layer, as vLLM keeps it on GPUs."""
    layer, field = recurrent_of(found, kind), STATE_TYPES.get(kind)
    named = found.get(field) if field else None
    if named is None:
        state_bytes = 4.0 if kind == "nemotron_h" else value_bytes
    else:
        state_bytes = type_bytes_of(named, f"model: {found.where}: {field}")
    return layer.convolution * value_bytes + layer.state * state_bytes


def _delta_net(found: Fields, hidden: int) -> RecurrentLayer:
    heads, size = found.number("linear_num_value_heads"), found.number("linear_value_head_dim")
    keys, key_size = found.number("linear_num_key_heads"), found.number("linear_key_head_dim")
    kernel = found.number("linear_conv_kernel_dim", 4)
    mixed = 2 * keys * key_size + heads * size
    weights = hidden * (mixed + 2 * heads * size + 2 * heads) + mixed * kernel
    return RecurrentLayer(weights, mixed * (kernel - 1), heads * size * key_size)
