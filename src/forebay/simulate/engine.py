"""What a simulated replica is made of: its speed, its limits and its KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.errors import SettingError
from forebay.simulate.step_time import StepTime


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A vLLM replica as the simulator sees it.

    `max_num_seqs` sequences run at most, `max_num_batched_tokens` tokens are computed per step. The KV cache
    holds `kv_tokens` tokens, allotted in units of `unit_tokens`; whole prompt blocks of `block_tokens` are
    kept for requests with the same prefix until room is needed.
    """

    name: str
    step_time: StepTime
    kv_tokens: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    unit_tokens: int = 16
    block_tokens: int = 512

    # Derived once: read in the innermost loop.
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
        """Seconds to the first token of a prompt on an idle replica without a cache."""
        budget, time = self.max_num_batched_tokens, self.step_time
        whole, rest = divmod(prompt_tokens, budget)
        seconds = time.prefill_run_s(whole, budget, 0) + whole * time.step_s
        if rest:
            seconds += time.prefill_run_s(1, rest, whole * budget) + time.step_s
        return seconds

    def check(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raises `SettingError` for a request that does not fit into the KV cache."""
        if prompt_tokens + output_tokens > self.kv_tokens - self.unit_tokens:
            raise SettingError(
                f"a request of {prompt_tokens} and {output_tokens} tokens does not fit into the KV cache of "
                f"{self.name}, {self.kv_tokens} tokens"
            )
