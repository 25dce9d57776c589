"""Which batch size, and which of its attentions, makes static batching fastest on a load.

Static batching has one setting, and its figures are worth nothing if it is set badly: small batches load the
weights for few answers, large ones make many wait for the longest. A batch takes as long as its prompts and
its longest answer do, so a short batch of each size tells how long a load would take with it.
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
    """What a batch of `batch_size` prompts takes with an attention of transformers: `prefill_s` for all of
    its prompts, `step_s` for the next token of each."""

    attention: str
    batch_size: int
    prefill_s: float
    step_s: float

    def load_s(self, lengths: Sequence[int]) -> float:
        """How long answers of these lengths would take, in this order, if the step took no longer as answers
        grow."""
        total_s = 0.0
        for first in range(0, len(lengths), self.batch_size):
            batch = lengths[first : first + self.batch_size]
            total_s += self.prefill_s * len(batch) / self.batch_size + (max(batch) - 1) * self.step_s
        return total_s


def batch_cost(worker: TransformersWorker, batch_size: int, prompt_tokens: int) -> BatchCost | None:
    """Measure one short batch; blocks. None where the batch fails, as for want of memory."""
    nonce = fresh_nonce()
    prompts = [random_ids(prompt_tokens, nonce, 0, index) for index in range(batch_size)]
    try:
        answer = worker.answer(prompts, PROBE_STEPS)
    except ServerFault:
        return None
    return BatchCost(worker.options.attention, batch_size, answer.prefill_s, answer.step_s or 0.0)


def fastest(costs: Sequence[BatchCost], lengths: Sequence[int]) -> BatchCost:
    """The one with which answers of these lengths are complete first. Raises `SettingError` without any."""
    if not costs:
        raise SettingError("static batching: no batch size could be measured; name a smaller --batch-size")
    return min(costs, key=lambda cost: cost.load_s(lengths))
