"""The memory of an accelerator: weights, and KV cache for a number of requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from forebay.errors import SettingError
from forebay.planning.model_config import ModelShape

GIB = 2**30
SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(GiB|GB|G)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Bytes, 16-bit operations per second without sparsity, bytes per second; 0 if unknown."""

    name: str
    memory: float
    flops: float = 0.0
    bandwidth: float = 0.0
    count: int = 1

    def times(self, count: int) -> Accelerator:
        """`count` of them as one replica (tensor parallelism)."""
        return replace(
            self,
            name=f"{count} x {self.name}" if count > 1 else self.name,
            memory=self.memory * count,
            flops=self.flops * count,
            bandwidth=self.bandwidth * count,
            count=self.count * count,
        )


ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("t4", 15 * GIB, 65e12, 320e9),
        Accelerator("a10g", 22.5 * GIB, 125e12, 600e9),
        Accelerator("l4", 22.5 * GIB, 121e12, 300e9),
        Accelerator("l40s", 45 * GIB, 362e12, 864e9),
        Accelerator("a100-40gb", 40 * GIB, 312e12, 1555e9),
        Accelerator("a100-80gb", 80 * GIB, 312e12, 2039e9),
        Accelerator("rtx-pro-6000", 95.5 * GIB, 503e12, 1792e9),
        Accelerator("h100", 79.6 * GIB, 989e12, 3350e9),
        Accelerator("h200", 140.4 * GIB, 989e12, 4800e9),
        Accelerator("b200", 179 * GIB, 2250e12, 8000e9),
        Accelerator("mi300x", 192 * GIB, 1307e12, 5300e9),
    )
}


def find_accelerator(text: str) -> Accelerator:
    """The accelerator of this name, or one with only a memory: `40GB`, `24GiB`.

    GB is read as sellers use it: 40 GB are 40 GiB. Raises `SettingError`.
    """
    known = ACCELERATORS.get(text.lower())
    if known is not None:
        return known
    found = SIZE.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) <= 100_000:
        raise SettingError(
            f"--accelerator: expected one of {', '.join(ACCELERATORS)}, or its memory such as 40GB; found "
            f"{text[:60]!r}"
        )
    return Accelerator(f"{float(found[1]):g} GB", float(found[1]) * GIB)


MEMORY_SHARE = 0.9
"""vLLM's `gpu_memory_utilization`."""
RESERVE = 1.0 * GIB
"""Activations, CUDA graphs and the runtime, on each card."""
STEP_TOKENS = 2048
"""vLLM's `max_num_batched_tokens` on most cards."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes over all accelerators of a replica.

    `kv_bytes_per_request`: what vLLM counts. `concurrency`: vLLM's "Maximum concurrency".
    `requests_at_most`: if the engine had all of the memory.
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
    step_tokens: int = STEP_TOKENS,
) -> MemoryPlan:
    """Raises `SettingError` if not one request fits, or the model cannot be split."""
    if not 0 < memory_share <= 1:
        raise SettingError(f"--memory-share: expected a share above 0 up to 1, found {memory_share:g}")
    shape, reserve = shape.over(accelerator.count), RESERVE * accelerator.count
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
