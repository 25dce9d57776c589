"""A simulated engine: a linear model of a step's duration, and the prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from forebay.errors import SettingError


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step's parts: reading the weights (`step_s`), decoding (`decode_s` per sequence,
    `context_s` per token of KV cache), and prefill.

    Prefill: `prefill_s` per token, `attention_s` per pair of tokens, `prefill_step_s` for any.
    """

    step_s: float
    decode_s: float
    context_s: float
    prefill_s: float
    attention_s: float
    prefill_step_s: float = 0.0

    def decode_run_s(self, steps: int, sequences: int, context: int) -> float:
        """`context` grows by one token per sequence and step."""
        grown = context * steps + sequences * (steps * (steps - 1) // 2)
        return steps * (self.step_s + sequences * self.decode_s) + grown * self.context_s

    def prefill_run_s(self, steps: int, chunk: int, start: int) -> float:
        pairs = chunk * (steps * (start + chunk / 2) + chunk * (steps * (steps - 1) / 2))
        return steps * (self.prefill_step_s + chunk * self.prefill_s) + pairs * self.attention_s


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The KV cache is allocated in `unit_tokens`; whole prompt blocks of `block_tokens` stay until room is
    needed."""

    name: str
    step_time: StepTime
    kv_tokens: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    unit_tokens: int = 16
    block_tokens: int = 512

    # Computed once: read in the innermost loop.
    units: int = field(init=False)
    block_units: int = field(init=False)

    def __post_init__(self) -> None:
        if self.block_tokens % self.unit_tokens or self.block_tokens < 1:
            raise SettingError(
                f"block_tokens: expected a multiple of {self.unit_tokens}, found {self.block_tokens}"
            )
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise SettingError(
                f"max_num_batched_tokens: expected more than max_num_seqs ({self.max_num_seqs}), so that "
                f"prompts get a share of each step; found {self.max_num_batched_tokens}"
            )
        object.__setattr__(self, "units", self.kv_tokens // self.unit_tokens)
        object.__setattr__(self, "block_units", self.block_tokens // self.unit_tokens)

    def alone_s(self, prompt_tokens: int) -> float:
        """Seconds to the first token, on an idle replica without a cache."""
        budget, time = self.max_num_batched_tokens, self.step_time
        whole, rest = divmod(prompt_tokens, budget)
        seconds = time.prefill_run_s(whole, budget, 0) + whole * time.step_s
        if rest:
            seconds += time.prefill_run_s(1, rest, whole * budget) + time.step_s
        return seconds

    def check(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raise `SettingError` for a request that does not fit into the KV cache."""
        if prompt_tokens + output_tokens > self.kv_tokens - self.unit_tokens:
            raise SettingError(
                f"a request of {prompt_tokens} and {output_tokens} tokens does not fit into the KV cache of "
                f"{self.name}, {self.kv_tokens} tokens"
            )


LLAMA_8B = EngineModel(
    "Llama-3.1-8B",
    StepTime(
        step_s=0.0117042,
        decode_s=3.40227e-05,
        context_s=7.57214e-08,
        prefill_s=4.65523e-05,
        attention_s=1.63644e-09,
        prefill_step_s=0.00198419,
    ),
    kv_tokens=500_000,
)
"""vLLM 0.19 on one RTX PRO 6000. KV cache, not in the measured run: 96 GB less weights and a tenth, at 128
KiB per token."""

QWEN_32B = EngineModel(
    "Qwen3-32B",
    StepTime(
        step_s=0.0280948,
        decode_s=6.3834e-05,
        context_s=1.6492e-07,
        prefill_s=1.37680e-04,
        attention_s=1.21703e-08,
        prefill_step_s=0.0316711,
    ),
    kv_tokens=400_000,
)
"""vLLM 0.19 on two RTX PRO 6000 (tensor parallel)."""

MODELS = {"llama-8b": LLAMA_8B, "qwen-32b": QWEN_32B}


def find_model(name: str) -> EngineModel:
    """Raises `SettingError` for an unknown name."""
    try:
        return MODELS[name]
    except KeyError:
        raise SettingError(f"engine: expected one of {', '.join(MODELS)}; found {name!r}") from None


class PrefixCache:
    __slots__ = ("idle", "users")

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Least recently used first."""

    def match(self, blocks: tuple[int, ...]) -> tuple[int, int]:
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
        users, idle = self.users, self.idle
        for block in blocks:
            if block in users:
                users[block] += 1
            else:
                users[block] = 1
                if block in idle:
                    del idle[block]

    def unpin(self, blocks: tuple[int, ...], computed: int) -> None:
        """Release the last first, so that a prefix outlives what follows it. Blocks from `computed` on are
        empty."""
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
        pop = self.idle.popitem
        for _ in range(min(blocks, len(self.idle))):
            pop(last=False)
