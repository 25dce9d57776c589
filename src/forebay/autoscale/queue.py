"""By queue length: as many replicas as bring the requests that wait to a target each.

Its known fault: a queue is there only when it is too late, and once it is empty nothing says how many
replicas keep it so.
"""

from __future__ import annotations

import math

from forebay.autoscale.base import Decision, Signals
from forebay.autoscale.proportional import HOLD_S, Hold, check_target, proportional


class QueueLength:
    """`target`: requests that may wait per replica."""

    def __init__(self, target: float = 10.0, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = Hold(hold_s)

    def decide(self, signals: Signals) -> Decision:
        waiting, ready = signals.waiting, signals.ready
        if ready == 0:
            # Nothing to take a mean over: as many as the whole queue asks for.
            wanted = max(math.ceil(waiting / self._target), signals.replicas, 1)
        else:
            wanted = max(proportional(ready, waiting / ready, self._target), 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{waiting:.0f} requests wait, {self._target:g} per replica may")
