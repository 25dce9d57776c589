"""Scale by queue length: as many replicas as bring the waiting requests to a target each.

Known fault: a queue exists only when it is too late, and an empty one does not show how many replicas keep it
empty.
"""

from __future__ import annotations

import math

from forebay.fleet.autoscale.base import Decision, Signals
from forebay.fleet.autoscale.proportional import HOLD_S, Hold, check_target, proportional


class QueueLength:
    """`target`: requests that may wait per replica."""

    def __init__(self, target: float = 10.0, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = Hold(hold_s)

    def decide(self, signals: Signals) -> Decision:
        waiting, ready = signals.waiting, signals.ready
        if ready == 0:
            # No mean is possible: as many as the whole queue requires.
            wanted = max(math.ceil(waiting / self._target), signals.replicas, 1)
        else:
            wanted = max(proportional(ready, waiting / ready, self._target), 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{waiting:.0f} requests wait, target {self._target:g} per replica")
