"""Whether what a replica reports of its load may be believed."""

from __future__ import annotations

from forebay.engine.load import ReplicaCounters
from forebay.records import ReplicaLoad

UNPROVEN_S = 10.0
"""How long a claim of other people's requests is believed that no request of ours has borne out."""
LEAST_CLAIM_S = 0.05
"""Claims of less waiting than this change nothing and are not looked into."""


class ReportCheck:
    """What one replica reports, held against what our own requests there see.

    A report that repeats itself to the last token while the replica is busy is no news, so that a frozen one
    goes stale. A claim of much waiting that keeps us away is believed for `UNPROVEN_S`, and then until a
    request of ours contradicts it; one that was found wrong is believed again once another bears it out.
    """

    def __init__(self) -> None:
        self.believed = True
        self._last: tuple[object, ...] | None = None
        self._unproven_since_s: float | None = None

    def news(self, load: ReplicaLoad, counters: ReplicaCounters) -> bool:
        """Whether the replica says something new. Of an idle one, the same over and over is new each time."""
        seen = (load.running, load.waiting, load.kv_cache_usage, counters)
        new = seen != self._last
        self._last = seen
        return new or not (load.running or load.waiting)

    def claimed(self, claimed_s: float, now_s: float) -> bool:
        """It claims that others' requests take `claimed_s` of prefill; whether to count that in."""
        if claimed_s < LEAST_CLAIM_S:
            self._unproven_since_s = None
            return True
        if self._unproven_since_s is None:
            self._unproven_since_s = now_s
        if now_s - self._unproven_since_s > UNPROVEN_S:
            self.believed = False
        return self.believed

    def first_token(self, claimed_s: float, own_s: float, waited_s: float) -> None:
        """A request of ours, sent when it claimed `claimed_s`, waited so long; ours alone took `own_s`."""
        if claimed_s < LEAST_CLAIM_S:
            return
        self.believed = waited_s >= own_s + claimed_s / 2
        self._unproven_since_s = None
