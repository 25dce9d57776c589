"""Scale by KV-cache use: as many replicas as bring the share in use to a target.

Known faults: those of `batch`; and a cache that is kept full of prefixes, or never fills as compute is the
limit, does not show load.
"""

from __future__ import annotations

from forebay.fleet.autoscale.base import Decision, Signals
from forebay.fleet.autoscale.proportional import HOLD_S, Hold, check_target, proportional


class KvCacheUse:
    """`target`: share of the KV cache in use, above 0 up to 1."""

    def __init__(self, target: float = 0.5, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = Hold(hold_s)

    def decide(self, signals: Signals) -> Decision:
        ready, usage = signals.ready, signals.kv_usage
        wanted = max(proportional(ready, usage, self._target), 1) if ready else max(signals.replicas, 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{usage:.0%} of the KV cache in use; {self._target:.0%} is the target")
