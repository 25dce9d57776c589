"""Scale by tokens in batches: as many replicas as bring each to a target.

Known faults: it over-reacts to a short spike, which fills the batches at once; and full batches look the same
for any queue.
"""

from __future__ import annotations

from forebay.fleet.autoscale.base import Decision, Signals
from forebay.fleet.autoscale.proportional import HOLD_S, Hold, check_target, proportional


class BatchedTokens:
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
        return Decision(held, f"{tokens:.0f} tokens in batches, target {self._target:.0f} per replica")
