"""How many replicas should prefill, by recent requests."""

from __future__ import annotations

from collections import deque

from forebay.plan.split import PhaseWork, decode_batch, split_of
from forebay.simulate.disaggregation import Split
from forebay.simulate.engine import EngineModel
from forebay.simulate.moving_split import PoolLoad

WINDOW_S = 10.0
MOST_REQUESTS = 10_000
GAIN = 1.1
"""Minimum gain: the busier pool must become less busy by this factor, as a change costs both pools."""


class RecentSplit:
    """The split at which both pools are equally busy with the current load.

    The prefill pool has the prompts of the last `WINDOW_S` to compute, and those that wait. The decode pool
    has its requests: a replica is full when it can just give each a token every `tpot_s`. So the length of
    answers need not be known. Deterministic; not thread-safe.
    """

    def __init__(self, engine: EngineModel, tpot_s: float) -> None:
        self._engine = engine
        self._tpot_s = tpot_s
        self._prompts: deque[tuple[float, float]] = deque(maxlen=MOST_REQUESTS)

    def arrived(self, now_s: float, prompt_tokens: int) -> None:
        self._prompts.append((now_s, self._engine.alone_s(prompt_tokens)))

    def split(self, now_s: float, current: Split, load: PoolLoad) -> Split:
        """The best split now; `current` if little would be gained or there is nothing to do."""
        while self._prompts and self._prompts[0][0] < now_s - WINDOW_S:
            self._prompts.popleft()
        work_s = sum(work_s for _, work_s in self._prompts)
        waiting_s = load.prefilling * work_s / max(len(self._prompts), 1)
        context = load.context_tokens / max(load.decoding, 1)
        # Replicas that each pool keeps busy.
        busy = PhaseWork(
            (work_s + waiting_s) / WINDOW_S,
            load.decoding / decode_batch(self._engine, context, self._tpot_s),
        )
        if not busy.prefill_s + busy.decode_s:
            return current
        wanted = split_of(current.prefill + current.decode, busy)
        return wanted if _busier(current, busy) >= GAIN * _busier(wanted, busy) else current


def _busier(split: Split, work: PhaseWork) -> float:
    return max(work.prefill_s / split.prefill, work.decode_s / split.decode)
