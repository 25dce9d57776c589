"""Published policies: Kubernetes' horizontal pod autoscaler for three metrics, and planned capacity.

    wanted = ceil(replicas · metric / target)

The number stays if the ratio is within a tenth of 1; for `hold_s` the largest wanted number holds.
"""

from __future__ import annotations

import math
from collections import deque

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import MAX_REPLICAS, Decision, Signals, Speed, whole

TOLERANCE = 0.1
HOLD_S = 300.0
LONGEST_HOLD_S = 86_400.0
FASTEST = 2.0
"""Kubernetes at most doubles the replicas in 15 s, or adds four, whichever is more."""


class StabilizationWindow:
    """The largest number wanted in the last `hold_s` seconds."""

    def __init__(self, hold_s: float) -> None:
        if not 0 <= hold_s <= LONGEST_HOLD_S:
            raise SettingError(f"hold_s: expected 0 to {LONGEST_HOLD_S:.0f} seconds, found {hold_s:g}")
        self.hold_s = hold_s
        self._wanted: deque[tuple[float, int]] = deque()

    def add(self, wanted: int, now_s: float) -> int:
        while self._wanted and self._wanted[0][0] < now_s - self.hold_s:
            self._wanted.popleft()
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        return self._wanted[0][1]


def proportional(replicas: int, metric: float, target: float) -> int:
    ratio = metric / target
    if abs(ratio - 1) <= TOLERANCE:
        return replicas
    most = max(FASTEST * replicas, replicas + 4)
    return min(math.ceil(replicas * ratio - 1e-9), int(most), MAX_REPLICAS)


def check_target(name: str, target: float) -> float:
    if not 0 < target < 1e12:
        raise SettingError(f"{name}: expected a target above 0, found {target:g}")
    return target


class QueueLength:
    """`target`: requests that may wait per replica."""

    def __init__(self, target: float = 10.0, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = StabilizationWindow(hold_s)

    def decide(self, signals: Signals) -> Decision:
        waiting, ready = signals.waiting, signals.ready
        if ready == 0:
            # No mean is possible: as many as the whole queue requires.
            wanted = max(math.ceil(waiting / self._target), signals.replicas, 1)
        else:
            wanted = max(proportional(ready, waiting / ready, self._target), 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{waiting:.0f} requests wait, target {self._target:g} per replica")


class BatchedTokens:
    def __init__(self, target: float = 100_000.0, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = StabilizationWindow(hold_s)

    def decide(self, signals: Signals) -> Decision:
        ready, tokens = signals.ready, signals.running_tokens
        if ready == 0:
            wanted = max(signals.replicas, 1)
        else:
            wanted = max(proportional(ready, tokens / ready, self._target), 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{tokens:.0f} tokens in batches, target {self._target:.0f} per replica")


class KvCacheUse:
    """`target`: share of the KV cache in use."""

    def __init__(self, target: float = 0.5, hold_s: float = HOLD_S) -> None:
        self._target = check_target("target", target)
        self._hold = StabilizationWindow(hold_s)

    def decide(self, signals: Signals) -> Decision:
        ready, usage = signals.ready, signals.kv_usage
        wanted = max(proportional(ready, usage, self._target), 1) if ready else max(signals.replicas, 1)
        held = self._hold.add(wanted, signals.now_s)
        return Decision(held, f"{usage:.0%} of the KV cache in use; {self._target:.0%} is the target")


class PlannedCapacity:
    """Serves the arriving tokens at a share of the planned capacity (`use`), before there is a queue.

    It ignores the backlog, deadlines and boot times.
    """

    def __init__(
        self, speed: Speed, use: float = 0.7, window_s: float = 60.0, hold_s: float = HOLD_S
    ) -> None:
        self._speed = speed
        self._use = check_target("use", use)
        if not 1 <= window_s <= 86_400:
            raise SettingError(f"window_s: expected 1 to 86400 seconds, found {window_s:g}")
        self._window_s = window_s
        self._hold = StabilizationWindow(hold_s)
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
