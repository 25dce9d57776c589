"""How often an operator looks for finished answers: it must add little, and cost little."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The step of the timer that wakes a shard.

    Each look costs a trip into Python, and an answer waits for half a step on average. A step is a share of
    what a call takes at present, within bounds, so that it adds at most about that share to an event: 1 ms
    for a scripted replica, 25 ms for a model that takes seconds and needs the processor itself.
    """

    share: float = 0.02
    least_ms: int = 1
    most_ms: int = 25
    idle_ms: int = 500

    def step_ms(self, call_s: float) -> int:
        """Milliseconds between two looks, where calls take `call_s` seconds at present."""
        return min(self.most_ms, max(self.least_ms, round(call_s * 1000 * self.share)))

    def next_ms(self, now_ms: int, call_s: float) -> int:
        """When to look next: the next multiple of the step, so that all shards of a subtask wake at once."""
        step_ms = self.step_ms(call_s)
        return (now_ms // step_ms + 1) * step_ms
