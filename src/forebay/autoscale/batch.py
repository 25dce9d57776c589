"""By active batched tokens: as many replicas as bring the tokens in their batches to a target each.

Its known fault: a short spike fills the batches at once, so it over-reacts; and full batches look alike
however much waits behind them.
"""

from __future__ import annotations

from forebay.autoscale.base import Decision, Signals
from forebay.autoscale.proportional import HOLD_S, Hold, check_target, proportional


class BatchedTokens:
    """`target`: tokens in the batch of a replica."""

    def __init__(self, target: float = 100_000.0, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = Hold(hold_s)

    def decide(self, signals: Signals) -> Decision:
        ready, tokens = signals.ready, signals.running_tokens
        if ready == 0:
            wanted = max(signals.replicas, 1)
        else:
            wanted = max(proportional(ready, tokens / ready, self._target), 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{tokens:.0f} tokens in batches, {self._target:.0f} per replica are meant")
