"""Scale by arrivals: as many replicas as serve the arriving tokens at a target share of their planned
capacity.

It acts before there is a queue. Known faults: it ignores the backlog, deadlines and boot times.
"""

from __future__ import annotations

from collections import deque

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import Decision, Signals, Speed, whole
from forebay.fleet.autoscale.proportional import HOLD_S, Hold, check_target


class PlannedCapacity:
    """`use`: the target share of a replica's capacity. `window_s`: the time over which arrivals are
    averaged."""

    def __init__(
        self, speed: Speed, use: float = 0.7, window_s: float = 60.0, hold_s: float = HOLD_S
    ) -> None:
        self._speed = speed
        self._use = check_target("use", use)
        if not 1 <= window_s <= 86_400:
            raise SettingError(f"window_s: expected 1 to 86400 seconds, found {window_s:g}")
        self._window_s = window_s
        self._hold = Hold(hold_s)
        self._arrived: deque[tuple[float, float]] = deque()
        self._work_s = 0.0
        self._began_s: float | None = None

    def decide(self, signals: Signals) -> Decision:
        now_s = signals.now_s
        if self._began_s is None:
            self._began_s = now_s
        work_s = sum(self._speed.work_s(tokens) for _, tokens in signals.arrived)
        self._arrived.append((now_s, work_s))
        self._work_s += work_s
        while self._arrived[0][0] <= now_s - self._window_s:
            self._work_s -= self._arrived.popleft()[1]
        span_s = min(self._window_s, max(now_s - self._began_s, 5.0))
        rate = max(self._work_s, 0.0) / span_s
        held = self._hold.add(max(whole(rate / self._use), 1), now_s)
        return Decision(held, f"arrivals keep {rate:.1f} replicas busy, {self._use:.0%} of their time")
