"""One replica of a fleet, as its client knows it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from forebay.engine.client import HttpEngine
from forebay.engine.load import ReplicaCounters
from forebay.engine.probe import ServedModel
from forebay.fleet.cache_events.watch import CacheWatch
from forebay.fleet.replicas.health import Health, HealthRules
from forebay.fleet.replicas.reports import ReportCheck
from forebay.fleet.state import Fleet
from forebay.records import ReplicaLoad

if TYPE_CHECKING:
    from forebay.fleet.lease import Lease

LAGS = 16
"""First tokens of requests that had nothing before them, whose mean is what one takes alone."""
LAG_GAIN = 1.5
"""How much longer than alone a first token may take before a replica counts as busy.

By Little's law the work in a queue, counted at the pace of first tokens, is what a request spends in it.
Where requests run side by side that is what one takes alone, however many there are: a gain above 1 lets
their number grow until they do hold each other up.
"""
FIRST_FADE = 0.99
UNSEEN_S = 30.0
"""How long an answer in one piece is awaited before metrics that stand still count as silence."""
PATIENCE = 4.0
"""How many times longer than expected a replica may be silent before it is held to hang."""


class Member:
    """A replica with its connection, its health and the requests that are in flight there.

    `row` is its number in the fleet, None until it was found to serve the model. `fault` says why it is not
    used though its health would allow it; empty where it may be.
    """

    def __init__(self, url: str, engine: HttpEngine, rules: HealthRules) -> None:
        self.url = url
        self.engine = engine
        self.health = Health(rules)
        self.reports = ReportCheck()
        self.row: int | None = None
        self.fault = "it was not asked yet"
        self.asked = False
        self.doubtful = True
        """Whether it must be asked again what it serves."""
        self.leaving = False
        self.models: tuple[ServedModel, ...] = ()
        self.leases: set[Lease] = set()
        self.cache: CacheWatch | None = None
        """What it publishes of its KV cache; None where it is not asked for that."""
        self.claimed_s = 0.0
        self._sign_s = -math.inf
        self._lags: deque[float] = deque(maxlen=LAGS)
        self._first_s: float | None = None
        self._shows_work = False
        self._seen: tuple[ReplicaCounters, float | None, set[Lease]] | None = None

    @property
    def why(self) -> str:
        """Why it gets no requests, in words; empty where it may get some."""
        if self.leaving:
            return "it has left the list"
        return self.fault or (self.health.why if self.health.state == "shut" else "")

    @property
    def believed_s(self) -> float:
        """The prefill of others' requests that it claims to have, as far as it may be believed."""
        return self.claimed_s if self.reports.believed else 0.0

    def open(self) -> bool:
        """Whether one more request may be sent there."""
        return not self.leaving and not self.fault and self.health.room(len(self.leases))

    def sign(self, now_s: float) -> None:
        """It sent something of an answer."""
        self._sign_s = now_s
        self.health.sign(now_s)

    def moved_since(self, moment_s: float) -> bool:
        return self._sign_s > moment_s

    def silent_since_s(self) -> float:
        """Since when answers are awaited there and nothing came; infinite where none is."""
        sent_s = [lease.sent_s for lease in self.leases if not lease.quiet]
        if self._shows_work:
            sent_s += [lease.sent_s + UNSEEN_S for lease in self.leases if lease.unseen]
        return max(self._sign_s, min(sent_s, default=math.inf))

    def patience_s(self, fleet: Fleet, least_s: float) -> float:
        """How long it may be silent. Until its first token nothing is known of its pace."""
        if self.row is None or self._first_s is None:
            return PATIENCE * least_s
        return max(least_s, PATIENCE * (fleet.queued_s(self.row) + self.believed_s))

    def began(self, fleet: Fleet, waited_s: float, *, alone: bool) -> None:
        """A request had its first token after so long; `alone`: with nothing before it.

        The first of all, which may take many times as long as any other, counts less and less until there
        are others.
        """
        if self._first_s is None:
            self._first_s = waited_s
        elif alone:
            self._lags.append(waited_s)
        elif not self._lags:
            self._first_s *= FIRST_FADE
        if self.row is not None:
            fleet.lag_s[self.row] = LAG_GAIN * (fmean(self._lags) if self._lags else self._first_s)

    def used(self, blocks: Sequence[int], now_s: float) -> None:
        """A request with these prefix blocks was sent there, or has ended there."""
        if self.cache is not None:
            self.cache.used(blocks, now_s)

    def heard(self, fleet: Fleet, load: ReplicaLoad, counters: ReplicaCounters | None, now_s: float) -> None:
        """It reported its load: counted in as far as it is news and may be believed."""
        row = self.row
        if counters is not None and self._moves(load, counters):
            self._shows_work = True
            self.sign(now_s)
        if row is None or (counters is not None and not self.reports.news(load, counters)):
            return
        self.claimed_s = fleet.claimed_s(row, load.waiting or 0.0)
        if self.reports.claimed(self.claimed_s, now_s):
            fleet.report(row, load)
        else:
            fleet.report(row, ReplicaLoad(load.observed_s))

    def _moves(self, load: ReplicaLoad, counters: ReplicaCounters) -> bool:
        """Whether its metrics show that it works: tokens are counted, or its KV cache changes though no
        request of ours came or went. A long prefill sends nothing for as long as it takes.
        """
        before, self._seen = self._seen, (counters, load.kv_cache_usage, set(self.leases))
        if before is None:
            return False
        return before[0] != counters or (before[1] != load.kv_cache_usage and before[2] == self.leases)
