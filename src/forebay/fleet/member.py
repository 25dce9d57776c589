"""One replica of a fleet as its client sees it, and whether its load reports are credible."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import Replica, ReplicaEngine, ServedModel
from forebay.errors import EngineError, RateLimited
from forebay.fleet.cache_events import CacheWatch
from forebay.fleet.concurrency import ConcurrencyLimit, Turn
from forebay.fleet.health import PATIENCE, Health, HealthRules, Progress, Tracked
from forebay.fleet.refusals import Refusals
from forebay.fleet.state import Fleet
from forebay.records import ReplicaLoad

UNPROVEN_S = 10.0
"""How long a reported queue of others' requests is believed without evidence from our requests."""
LEAST_CLAIM_S = 0.05
"""Reports of less waiting than this are not checked."""


class ReportCheck:
    """Checks what one replica reports against what our own requests see there.

    A report that does not change while the replica is busy is not new, so a frozen one becomes stale. A long
    reported queue is believed for `UNPROVEN_S`, and then until one of our requests contradicts it. After a
    contradiction it is believed again once a request confirms it.
    """

    def __init__(self) -> None:
        self.believed = True
        self._last: tuple[object, ...] | None = None
        self._unproven_since_s: float | None = None

    def news(self, load: ReplicaLoad, counters: ReplicaCounters) -> bool:
        """Whether the report is new. For an idle replica the same report counts as new."""
        seen = (load.running, load.waiting, load.kv_cache_usage, counters)
        new = seen != self._last
        self._last = seen
        return new or not (load.running or load.waiting)

    def claimed(self, claimed_s: float, now_s: float) -> bool:
        """Whether to count a report that others' requests take `claimed_s` of prefill."""
        if claimed_s < LEAST_CLAIM_S:
            self._unproven_since_s = None
            return True
        if self._unproven_since_s is None:
            self._unproven_since_s = now_s
        if now_s - self._unproven_since_s > UNPROVEN_S:
            self.believed = False
        return self.believed

    def first_token(self, claimed_s: float, own_s: float, waited_s: float) -> None:
        """Check a report of `claimed_s` against a request that waited `waited_s`; alone it takes `own_s`."""
        if claimed_s < LEAST_CLAIM_S:
            return
        self.believed = waited_s >= own_s + claimed_s / 2
        self._unproven_since_s = None


UNSEEN_S = 30.0
"""How long to wait for an answer in one piece before unchanged metrics count as silence."""
WHOLE = 0.99
"""If the first content comes after this share of an answer's time, the answer comes in one piece."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 30.0
"""How long to pause a replica that gets requests too fast and names no time: doubled until one succeeds. And
the longest pause, whatever it asks for."""
EXCUSED_S = 10.0
"""How long refusals are ignored after probes passed."""
FADE = 0.1
USUAL_FADE = 0.02
MOSTLY = 0.25
"""Answers come in one piece if fewer than this share recently did not, and vice versa."""


class Member:
    """A replica with its connection, its health and its requests in flight.

    `row` is its number in the fleet; None until it is found to serve the model. `fault` is why it gets no
    requests although it is healthy; empty if it may.
    """

    def __init__(
        self,
        url: str,
        replica: Replica,
        rules: HealthRules,
        *,
        capacity: float = math.inf,
        most_s: float = math.inf,
    ) -> None:
        self.url = url
        self.replica = replica
        self.health = Health(rules)
        self.progress = Progress()
        turn = Turn()
        self.running = ConcurrencyLimit(most=capacity, most_s=most_s, turn=turn)
        """How many requests give the highest throughput."""
        self.beside = ConcurrencyLimit(most=capacity, turn=turn)
        """How many of them may wait for a first token."""
        self.refusals = Refusals()
        self.working = 0
        """How many of its requests it works on, as far as tokens show."""
        self.whole = False
        """Whether answers come in one piece, so that no first token shows what it works on."""
        self.reports = ReportCheck()
        self.row: int | None = None
        self.fault = "it was not asked yet"
        self.asked = False
        self.doubtful = True
        """Whether it must be asked again what it serves."""
        self.leaving = False
        self.models: tuple[ServedModel, ...] = ()
        self.list_due_s = -math.inf
        """When to ask it again what it serves."""
        self.leases: set[Tracked] = set()
        self.cache: CacheWatch | None = None
        """Its KV-cache events; None without them."""
        self.claimed_s = 0.0
        self.held = False
        """Whether it gets nothing until it answers a probe."""
        self.paused_until_s = -math.inf
        """Until when it asked for a pause."""
        self.wakes_s = -math.inf
        """When the end of the pause is checked."""
        self.acquitted_s = -math.inf
        """When a probe last passed although requests had failed."""
        self._wish_s = 0.0
        self._refused_s = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._usual_s = math.inf
        self._whole_share: float | None = None
        self._has_begun = False
        self._shows_work = False
        self._seen: tuple[ReplicaCounters, float | None, set[Tracked]] | None = None

    @property
    def engine(self) -> ReplicaEngine:
        return self.replica.engine

    @property
    def why(self) -> str:
        """Why it gets no requests; empty if it may get some."""
        if self.leaving:
            return "it has left the list"
        return self.fault or (self.health.why if self.health.state == "shut" else "")

    @property
    def believed_s(self) -> float:
        """The reported prefill of others' requests, if credible."""
        return self.claimed_s if self.reports.believed else 0.0

    def open(self, now_s: float) -> bool:
        """Whether one more request may be sent."""
        if self.leaving or self.fault or self.held or now_s < self.paused_until_s:
            return False
        return self.health.room(len(self.leases) - self.older)

    @property
    def older(self) -> int:
        """How many requests were sent before it was last shut, while its number is limited. They may take
        long, and take no place from requests that test it."""
        if math.isinf(self.health.limit):
            return 0
        return sum(lease.epoch != self.health.epoch for lease in self.leases)

    def look(self, fleet: Fleet, now_s: float) -> None:
        """Let go what slow requests hold back; call it now and then."""
        self.progress.set_aside_stale(now_s)
        if self.row is not None:
            # Requests that others overtake would not begin sooner at a replica with fewer of them.
            self.running.look(int(fleet.requests[self.row]) - self.progress.overtaken, now_s)
            self.beside.look(int(fleet.waiting[self.row]), now_s)
        self.tell(fleet)

    def refused(self, error: EngineError, others: int, sent_s: float, now_s: float) -> bool:
        """Count a refusal, with `others` there; returns whether it counts against the replica.

        It does not if the replica works on the others, and only once for requests sent at the same time. The
        replica is paused as it asks only if it takes none at present and refuses a probe, too.
        """
        together = sent_s < self._refused_s
        if not together:
            self._refused_s = now_s
        wait_s = min(error.retry_after_s or 0.0, MOST_PAUSE_S)
        kind = self.refusals.refused(others, sent_s, now_s, wait_s)
        if kind == "shut":
            if error.retry_after_s is None and isinstance(error, RateLimited) and not together:
                wait_s, self._pause_s = min(self._pause_s, MOST_PAUSE_S), 2 * self._pause_s
            self._wish_s = wait_s
            if wait_s:
                self.health.refused(str(error))
        return not together and kind != "one too many"

    def convict(self, now_s: float) -> None:
        """Shut it: a probe failed like the requests."""
        self.paused_until_s = max(self.paused_until_s, now_s + self._wish_s)
        self._wish_s = 0.0
        self.health.convict(now_s)

    def acquit(self, now_s: float) -> None:
        """Drop accusations: a probe passed, so the requests were at fault."""
        self._wish_s = 0.0
        self.health.acquit()
        self.excuse(now_s)

    def excuse(self, now_s: float) -> None:
        """Ignore refusals for a while: probes passed, so they were due to the requests."""
        self.acquitted_s = now_s
        self.refusals = Refusals(self.refusals.seen, now_s + EXCUSED_S)

    def works(self) -> bool:
        """Whether it answers requests: in use and not on probation."""
        return self.health.state == "up" and not self.fault and not self.leaving

    def sign(self, now_s: float) -> None:
        """Note a sign that it works."""
        self.progress.moved(now_s)
        self.health.sign(now_s)

    def moved_since(self, moment_s: float) -> bool:
        return self.progress.moved_s > moment_s

    @property
    def throttled(self) -> bool:
        """Whether requests may wait because of a limit that no probe has checked."""
        return not self.refusals.checked and len(self.leases) >= self.refusals.most

    def silent_since_s(self) -> float:
        """Since when it is silent although answers are awaited; infinite if none is."""
        sent_s = [lease.sent_s for lease in self.leases if not lease.quiet]
        if self._shows_work:
            sent_s += [lease.sent_s + UNSEEN_S for lease in self.leases if lease.unseen]
        return max(self.progress.moved_s, min(sent_s, default=math.inf))

    def patience_s(self, fleet: Fleet, least_s: float) -> float:
        """How long it may be silent. Its pace is unknown before the first token."""
        if self.row is None or not self._has_begun:
            return PATIENCE * least_s
        return max(least_s, PATIENCE * (fleet.queued_s(self.row) + self.believed_s))

    def began(self, there: int, waiting: int, sent_s: float, now_s: float) -> None:
        """Count a first token of a request sent as the last of `there`; `waiting` had no first token until
        now."""
        took_s = now_s - sent_s
        more_s = took_s - self._usual_s
        self._usual_s = took_s if more_s < 0 else self._usual_s + more_s * USUAL_FADE
        self.beside.waited(took_s, self._usual_s, sent_s, now_s)
        self.beside.answered(waiting, sent_s, now_s)
        self._has_begun = True
        self._pause_s = FIRST_PAUSE_S
        self.refusals.answered(there, sent_s, now_s)

    def sent(self, now_s: float) -> None:
        """Count a request that was sent."""
        self.running.began(now_s)
        self.beside.began(now_s)

    def answered(self, there: int, sent_s: float, now_s: float, *, whole: bool) -> None:
        """Count an answer to one of `there` requests; `whole`: it came in one piece."""
        self.running.answered(there, sent_s, now_s)
        share = self._whole_share
        self._whole_share = share = float(whole) if share is None else share + (whole - share) * FADE
        if not MOSTLY < share < 1 - MOSTLY:
            self.whole = share > 0.5
            if self.whole:
                self.running.whole()

    def flowed(self, sent_s: float, gap_s: float, now_s: float, *, first: bool, tokens: int) -> None:
        """Count tokens `gap_s` after the previous ones; `first`: the first such piece of its answer."""
        if self.whole:
            return
        if first:
            self.running.begun(self.working, sent_s, now_s)
        self.running.flowed(self.working, gap_s, now_s, tokens=tokens)

    def tell(self, fleet: Fleet) -> None:
        """Set in `fleet` how many requests there may be."""
        if self.row is not None:
            limit = int(min(self.running.limit, self.refusals.most))
            fleet.set_room(self.row, limit, math.inf if self.whole else self.beside.limit)

    def used(self, blocks: Sequence[int], now_s: float) -> None:
        """Mark the blocks of a request that was sent there or ended there."""
        if self.cache is not None:
            self.cache.used(blocks, now_s)

    def heard(self, fleet: Fleet, load: ReplicaLoad, counters: ReplicaCounters | None, now_s: float) -> None:
        """Take a report of its load, as far as it is new and credible."""
        row = self.row
        if counters is not None and self._moves(load, counters):
            self._shows_work = True
            self.sign(now_s)
        if row is None or (counters is not None and not self.reports.news(load, counters)):
            return
        self.claimed_s = fleet.claimed_s(row, load.waiting or 0.0)
        if load.running is not None:
            self.running.reported(load.running, load.waiting or 0.0, load.kv_cache_usage or 0.0, now_s)
            self.tell(fleet)
        if self.reports.claimed(self.claimed_s, now_s):
            fleet.report(row, load)
        else:
            fleet.report(row, ReplicaLoad(load.observed_s))

    def _moves(self, load: ReplicaLoad, counters: ReplicaCounters) -> bool:
        """Whether its metrics show work: tokens are counted, or the KV cache changes although none of our
        requests came or went. A long prefill sends nothing meanwhile."""
        before, self._seen = self._seen, (counters, load.kv_cache_usage, set(self.leases))
        if before is None:
            return False
        return before[0] != counters or (before[1] != load.kv_cache_usage and before[2] == self.leases)
