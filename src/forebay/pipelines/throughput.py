"""What limits a running pipeline, how fast it is, and when what waits will be done."""

from __future__ import annotations

from collections import deque

from forebay.pipelines.snapshot import Snapshot

OVER_S = 30.0
"""The time that a rate is of."""
LEAST_S = 2.0
"""Nothing is said of a rate over less time."""
MOSTLY = 0.5
"""The engine limited a run in which events waited for it for more than this share of the time."""


class Throughput:
    """Told of each snapshot, in order. Events wait for the engine while `capacity` calls are in flight."""

    def __init__(self) -> None:
        self._done: deque[tuple[float, int]] = deque()
        self._waited_s = self._passed_s = 0.0

    def add(self, now: Snapshot) -> None:
        done = now.results + now.dead_letters
        if self._done:
            last_s, last = self._done[-1]
            if now.elapsed_s < last_s or done < last:
                # The job has started, or started anew, and counts from the beginning.
                self._done.clear()
            else:
                self._passed_s += now.elapsed_s - last_s
                self._waited_s += now.elapsed_s - last_s if now.pending else 0.0
        self._done.append((now.elapsed_s, done))
        while now.elapsed_s - self._done[0][0] > OVER_S:
            self._done.popleft()

    @property
    def per_s(self) -> float | None:
        """Events done per second, over the last half minute; None where too little is known."""
        if not self._done:
            return None
        (since_s, before), (now_s, done) = self._done[0], self._done[-1]
        return (done - before) / (now_s - since_s) if now_s - since_s >= LEAST_S else None

    @property
    def engine_limited(self) -> bool:
        """Whether events waited for the engine for most of the time until now."""
        return self._waited_s > MOSTLY * self._passed_s

    def left_s(self, now: Snapshot) -> float | None:
        """Seconds until all that waits is done, at the present rate; None where that is not known."""
        if now.backlog is None or not self.per_s:
            return None
        return (now.backlog.records + now.pending + now.in_flight) / self.per_s

    def limit(self, now: Snapshot) -> str:
        """What limits now, in words; empty where nothing waits for the engine, or too little is known."""
        if not now.pending or self.per_s is None:
            return ""
        words = f"the engine limits: {_rate(self.per_s)}"
        left_s = self.left_s(now)
        return words if left_s is None else f"{words}, what waits is done in {_span(left_s)}"

    def limited(self, last: Snapshot) -> str:
        """At the end: what limited the run, in words; empty where the engine did not."""
        if not self.engine_limited or last.elapsed_s <= 0:
            return ""
        return f"the engine limited: {_rate((last.results + last.dead_letters) / last.elapsed_s)}"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f} events/s" if per_s >= 10 else f"{per_s:.1f} events/s"


def _span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
