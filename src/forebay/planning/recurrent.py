"""Layers that keep a state of fixed size: Gated DeltaNet and Mamba-2."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.planning.config_fields import Fields, type_bytes_of

DELTA_NET = frozenset(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"))
MAMBA_2 = frozenset(("granitemoehybrid", "nemotron_h"))
STATE_TYPES = {"qwen3_5_text": "mamba_ssm_dtype", "qwen3_5_moe_text": "mamba_ssm_dtype",
               "nemotron_h": "mamba_ssm_cache_dtype"}  # fmt: skip
"""The field with the number type of the state, if vLLM reads one."""


def states_of(kind: str) -> int:
    """States of a request that vLLM keeps with prefix caching, its default.

    Mamba-2 has one more, for a prefix that ends within a step.
    """
    return 3 if kind in MAMBA_2 else 2


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """One recurrent layer.

    Attributes:
        weights: Its weights.
        convolution: Numbers of the convolution's state, in the model's number type.
        state: Numbers of the recurrent state.
    """

    weights: int
    convolution: int
    state: int


def recurrent_of(found: Fields, kind: str) -> RecurrentLayer:
    """Read the recurrent layers of a model that has some; they are alike."""
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
    """Bytes of one request's state in a recurrent layer, as vLLM keeps it on GPUs."""
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
