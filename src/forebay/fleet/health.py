"""Whether a replica may get requests (a circuit breaker with a slow start), and whether its load reports are
credible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from forebay.engine.load import ReplicaCounters
from forebay.records import ReplicaLoad

State = Literal["up", "shut", "trial"]


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When a replica is shut and how it opens again.

    It is shut after `failures` without a success between them (`failures_alone` if it is the only one), or
    after `missed_checks`. Failures of one source alone never shut it: a probe must fail, too.

    It stays shut for `first_wait_s`, doubled with each further failure up to `max_wait_s`. Then a passed
    probe lets one request through. Each first token allows one more in flight and halves the wait; after
    `start_tokens` there is no limit. A replica that joined and was never shut has no limit after its first
    token.
    """

    failures: int = 3
    failures_alone: int = 32
    missed_checks: int = 2
    first_wait_s: float = 1.0
    max_wait_s: float = 30.0
    start_tokens: int = 32


RULES = HealthRules()
SOURCES = 3
"""Failures from this many sources show that the replica is at fault."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What failed requests hold against a replica until a probe decides. `shuts`: a failed probe shuts it;
    else it only pauses as it asked."""

    why: str
    at_least_s: float | None = None
    shuts: bool = True


class Health:
    """The state of one replica. Times are passed in.

    `up`: no limit, or that of a slow start. `shut`: nothing is sent. `trial`: it has just joined, and one
    request may test it. `suspicion`: what a probe must confirm or refute. Requests sent before the replica
    was shut have an older `epoch` and count no more.
    """

    def __init__(self, rules: HealthRules = RULES) -> None:
        self._rules = rules
        self.state: State = "up"
        self.why = ""
        """Why it was shut last; empty if it never was."""
        self.epoch = 0
        self.limit = math.inf
        self.until_s = -math.inf
        self._wait_s = rules.first_wait_s
        self._failures = 0
        self._sources: set[str] = set()
        self._missed = 0
        self._sign_s = -math.inf
        self.suspicion: Suspicion | None = None

    def room(self, in_flight: int) -> bool:
        """Whether one more request may be sent."""
        return self.state != "shut" and in_flight < self.limit

    def start_slowly(self) -> None:
        """Let one request test it: it has just joined."""
        self.state, self.limit = "trial", 1.0

    def sign(self, now_s: float) -> None:
        """Note bytes of an answer."""
        self._sign_s = now_s

    def succeeded(self, epoch: int, now_s: float, *, first: bool = True, complete: bool = True) -> None:
        """Count a request of `epoch` that got its `first` token, its `complete` answer, or both.

        First tokens reopen a replica, but do not make up for answers that break off.
        """
        self._sign_s = now_s
        if epoch != self.epoch or self.state == "shut":
            return
        self._missed = 0
        if complete:
            self._forget_failures()
        self.state = "up"
        if first and self.limit < math.inf:
            self.limit += 1
            self._wait_s = max(self._rules.first_wait_s, self._wait_s / 2)
            # A replica that never failed has nothing more to prove.
            if not self.epoch or self.limit > self._rules.start_tokens:
                self.limit = math.inf
                self.why = ""

    def failed(
        self,
        epoch: int,
        why: str,
        now_s: float,
        *,
        in_flight: int = 0,
        at_least_s: float | None = None,
        alone: bool = False,
        source: str | None = None,
    ) -> None:
        """Count a failure that seems to be the replica's fault, of a request sent in `epoch`.

        As many failures are needed as requests are still `in_flight`, since some of many may fail in a row by
        chance. `source`: who sent it; None for one unrelated to any other. `at_least_s`: how long the replica
        asked to be left alone, bounded by `max_wait_s`.
        """
        if epoch != self.epoch or self.state == "shut":
            return
        self._failures += 1
        if len(self._sources) < SOURCES:
            self._sources.add(f"#{self._failures}" if source is None else source)
        enough = max(self._rules.failures_alone if alone else self._rules.failures, in_flight)
        if self.state == "trial" or self._failures >= enough or at_least_s is not None:
            if len(self._sources) >= SOURCES:
                self.shut(why, now_s, at_least_s=at_least_s)
            else:
                self.suspicion = Suspicion(why, at_least_s)

    def suspect(self, why: str) -> None:
        """Suspect it of hanging."""
        self.suspicion = Suspicion(why)

    def refused(self, why: str) -> None:
        """Suspect it of refusing requests although it has hardly any."""
        self.suspicion = self.suspicion or Suspicion(why, shuts=False)

    def clear_suspicion(self) -> None:
        """Drop the suspicion: a probe passed, so the requests were at fault."""
        self.suspicion = None
        if self.state == "trial":
            self.state = "up"
        self._forget_failures()

    def confirm_suspicion(self, now_s: float) -> None:
        """Act on the suspicion: a probe failed, too."""
        suspicion, self.suspicion = self.suspicion, None
        if suspicion is not None and suspicion.shuts and self.state != "shut":
            self.shut(suspicion.why, now_s, at_least_s=suspicion.at_least_s)

    def check_passed(self) -> None:
        """Count a passed check. That alone opens nothing."""
        self._missed = 0

    def due(self, now_s: float) -> bool:
        """Whether a probe may open it again."""
        return self.state == "shut" and now_s >= self.until_s

    def probe_passed(self, now_s: float) -> None:
        """Open it after a passed probe, for one request."""
        if self.due(now_s):
            self.state, self.limit = "up", 1.0

    def check_failed(self, why: str, began_s: float, now_s: float) -> None:
        """Count a failed check that began at `began_s`, unless the replica has answered requests since."""
        if self._sign_s >= began_s:
            return
        self._missed += 1
        if self.state != "shut" and (self._missed >= self._rules.missed_checks or self._failures):
            self.shut(why, now_s)

    def shut(self, why: str, now_s: float, *, at_least_s: float | None = None) -> None:
        """Send it nothing for a while."""
        self.state, self.why, self.limit = "shut", why, 0.0
        self.epoch += 1
        self._forget_failures()
        self.suspicion = None
        self.until_s = now_s + max(self._wait_s, min(at_least_s or 0.0, self._rules.max_wait_s))
        self._wait_s = min(self._wait_s * 2, self._rules.max_wait_s)

    def _forget_failures(self) -> None:
        self._failures = 0
        self._sources.clear()


UNPROVEN_S = 10.0
"""How long a reported queue of others' requests counts without evidence from our requests."""
MIN_CLAIM_S = 0.05
"""Reports of less waiting than this are not checked."""


class ReportCheck:
    """Checks what one replica reports against what our own requests see there.

    A report that does not change while the replica is busy is not new, so a frozen one becomes stale. A long
    reported queue counts for `UNPROVEN_S`, and then until one of our requests contradicts it. After a
    contradiction it counts again once a request confirms it.
    """

    def __init__(self) -> None:
        self.credible = True
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
        if claimed_s < MIN_CLAIM_S:
            self._unproven_since_s = None
            return True
        if self._unproven_since_s is None:
            self._unproven_since_s = now_s
        if now_s - self._unproven_since_s > UNPROVEN_S:
            self.credible = False
        return self.credible

    def first_token(self, claimed_s: float, own_s: float, waited_s: float) -> None:
        """Check a report of `claimed_s` against a request that waited `waited_s`; alone it takes `own_s`."""
        if claimed_s < MIN_CLAIM_S:
            return
        self.credible = waited_s >= own_s + claimed_s / 2
        self._unproven_since_s = None
