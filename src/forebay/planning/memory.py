"""The memory of an accelerator: weights, and KV cache for a number of requests."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import SettingError
from forebay.planning.accelerators import GIB, Accelerator
from forebay.planning.model_config import ModelShape

MEMORY_SHARE = 0.9
"""vLLM's `gpu_memory_utilization`."""
RESERVE = 1.0 * GIB
"""Activations, CUDA graphs and the runtime, in bytes on each card."""
STEP_TOKENS = 2048
"""vLLM's `max_num_batched_tokens` on most cards."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes over all accelerators of a replica, and how many requests fit.

    Attributes:
        weight_bytes: The weights.
        kv_bytes_per_token: A token's share of what a request of `context` tokens stores.
        kv_bytes_per_request: What vLLM counts for a request of `context` tokens.
        kv_bytes: The KV cache.
        kv_tokens: Tokens in requests of `context` tokens that the KV cache holds.
        context: Tokens of a request.
        concurrency: How many such requests fit, as vLLM logs it ("Maximum concurrency").
        requests: The same as a whole number.
        requests_at_most: The same if the engine had all of the memory.
    """

    weight_bytes: float
    kv_bytes_per_token: float
    kv_bytes_per_request: float
    kv_bytes: float
    kv_tokens: int
    context: int
    concurrency: float
    requests: int
    requests_at_most: int


def plan_memory(
    shape: ModelShape,
    accelerator: Accelerator,
    context: int,
    *,
    memory_share: float = MEMORY_SHARE,
    reserve: float = RESERVE,
    step_tokens: int = STEP_TOKENS,
) -> MemoryPlan:
    """Plan the memory of all cards: weights, `reserve` on each, and the rest for the KV cache.

    `step_tokens`: see `kv_cache.reserved_bytes`. Raises `SettingError` if not even one request fits, if
    `context` is more than the model takes, and if the model cannot be split among the cards.
    """
    if not 0 < memory_share <= 1:
        raise SettingError(f"--memory-share: expected a share above 0 up to 1, found {memory_share:g}")
    shape, reserve = shape.over(accelerator.count), reserve * accelerator.count
    _check_context(shape, context)
    each = shape.reserved_bytes(context, step_tokens)
    room = accelerator.memory * memory_share - shape.weight_bytes - reserve
    whole = accelerator.memory - shape.weight_bytes - reserve
    if room < each:
        raise SettingError(
            f"{accelerator.name}: the weights take {shape.weight_bytes / GIB:.1f} GiB and the runtime "
            f"{reserve / GIB:.1f} of {accelerator.memory * memory_share / GIB:.1f} GiB, and one request of "
            f"{context} tokens {each / GIB:.2f} GiB: take a larger accelerator, more of them "
            "(--tensor-parallel), a quantized model or a shorter --context"
        )
    return cache_plan(shape, context, room, whole, step_tokens=step_tokens)


def cache_plan(
    shape: ModelShape, context: int, kv_bytes: float, most_bytes: float, *, step_tokens: int = STEP_TOKENS
) -> MemoryPlan:
    _check_context(shape, context)
    each = shape.reserved_bytes(context, step_tokens)
    return MemoryPlan(
        weight_bytes=shape.weight_bytes,
        kv_bytes_per_token=shape.kv_cache_bytes(context) / context,
        kv_bytes_per_request=each,
        kv_bytes=kv_bytes,
        kv_tokens=int(kv_bytes * context / each),
        context=context,
        concurrency=kv_bytes / each,
        requests=int(kv_bytes / each),
        requests_at_most=int(most_bytes / each),
    )


def _check_context(shape: ModelShape, context: int) -> None:
    if context < 1:
        raise SettingError(f"--context: expected at least 1 token, found {context}")
    if shape.max_context is not None and context > shape.max_context:
        raise SettingError(
            f"--context: expected at most {shape.max_context} tokens, which the model takes by its config, "
            f"found {context}"
        )
