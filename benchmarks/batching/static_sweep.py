"""Finds the batch size and the attention with which static batching is fastest on a load.

A badly chosen size would make its figures worthless: small batches load the weights for few answers, large
ones make many wait for the longest. A batch takes as long as its prompts and its longest answer, so a short
batch of each size predicts the time of a load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.batching.transformers import TransformersWorker
from forebay.bench.load.plan import fresh_nonce
from forebay.bench.load.workloads import random_ids
from forebay.errors import ServerFault, SettingError

PROBE_STEPS = 16


@dataclass(frozen=True, slots=True)
class BatchCost:
    """A batch of `batch_size` prompts with an attention of transformers: `prefill_s` for all of its prompts,
    `step_s` for the next token of each."""

    attention: str
    batch_size: int
    prefill_s: float
    step_s: float

    def load_s(self, lengths: Sequence[int]) -> float:
        """The predicted time of answers with these lengths, in this order, with a constant step time."""
        total_s = 0.0
        for first in range(0, len(lengths), self.batch_size):
            batch = lengths[first : first + self.batch_size]
            total_s += self.prefill_s * len(batch) / self.batch_size + (max(batch) - 1) * self.step_s
        return total_s


def batch_cost(worker: TransformersWorker, batch_size: int, prompt_tokens: int) -> BatchCost | None:
    """Measure one short batch; blocks. None if the batch fails, for example without enough memory."""
    nonce = fresh_nonce()
    prompts = [random_ids(prompt_tokens, nonce, 0, index) for index in range(batch_size)]
    try:
        answer = worker.answer(prompts, PROBE_STEPS)
    except ServerFault:
        return None
    return BatchCost(worker.options.attention, batch_size, answer.prefill_s, answer.step_s or 0.0)


def fastest(costs: Sequence[BatchCost], lengths: Sequence[int]) -> BatchCost:
    """The cost with the shortest predicted time. Raises `SettingError` if there is none."""
    if not costs:
        raise SettingError("static batching: no batch size could be measured; name a smaller --batch-size")
    return min(costs, key=lambda cost: cost.load_s(lengths))
