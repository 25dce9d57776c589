"""Whether a replica may get requests (a circuit breaker with a slow start), whether its load reports are
credible, and which of its requests have stalled.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from forebay.engine.load import ReplicaCounters
from forebay.records import ReplicaLoad

State = Literal["up", "shut", "trial"]


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When a replica is shut and how it opens again.

    It is shut after `failures` without a success between them (`failures_alone` if it is the only one), or
    after `missed_checks`. If all failures are of one source, a probe must fail, too. It stays shut for
    `first_wait_s`, doubled with each further failure up to `max_wait_s`. Then a passed probe lets one request
    through. Each first token allows one more in flight and halves the wait; after `start_tokens` there is no
    limit.
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
    """Evidence of failed requests against a replica until a probe decides. `shuts`: a failed probe shuts it;
    else it only pauses as it asked.
    """

    why: str
    at_least_s: float | None = None
    shuts: bool = True


class Health:
    """The state of one replica.

    `up`: no limit, or that of a slow start. `shut`: nothing is sent. `trial`: it has just joined, and one
    request may test it. Requests with an older `epoch`, from before it was shut, count no more.
    """

    def __init__(self, rules: HealthRules = RULES) -> None:
        self._rules = rules
        self.state: State = "up"
        self.why = ""
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
        return self.state != "shut" and in_flight < self.limit

    def start_slowly(self) -> None:
        self.state, self.limit = "trial", 1.0

    def sign(self, now_s: float) -> None:
        self._sign_s = now_s

    def succeeded(self, epoch: int, now_s: float, *, first: bool = True, complete: bool = True) -> None:
        """Count a request that got its `first` token, its `complete` answer, or both. First tokens reopen a
        replica, but do not make up for answers that break off.
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
            # A replica that never failed needs no slow start.
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

        As many failures are needed as requests are still `in_flight`: some may fail in a row by chance.
        `source`: who sent it. `at_least_s`: the pause the replica asked for.
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
        self.suspicion = Suspicion(why)

    def refused(self, why: str) -> None:
        self.suspicion = self.suspicion or Suspicion(why, shuts=False)

    def clear_suspicion(self) -> None:
        self.suspicion = None
        if self.state == "trial":
            self.state = "up"
        self._forget_failures()

    def confirm_suspicion(self, now_s: float) -> None:
        suspicion, self.suspicion = self.suspicion, None
        if suspicion is not None and suspicion.shuts and self.state != "shut":
            self.shut(suspicion.why, now_s, at_least_s=suspicion.at_least_s)

    def check_passed(self) -> None:
        self._missed = 0

    def due(self, now_s: float) -> bool:
        return self.state == "shut" and now_s >= self.until_s

    def probe_passed(self, now_s: float) -> None:
        if self.due(now_s):
            self.state, self.limit = "up", 1.0

    def check_failed(self, why: str, began_s: float, now_s: float) -> None:
        if self._sign_s >= began_s:
            return
        self._missed += 1
        if self.state != "shut" and (self._missed >= self._rules.missed_checks or self._failures):
            self.shut(why, now_s)

    def shut(self, why: str, now_s: float, *, at_least_s: float | None = None) -> None:
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
MIN_CLAIM_S = 0.05


class ReportCheck:
    """Checks what one replica reports against what our own requests see there.

    A long reported queue counts for `UNPROVEN_S`, and then until one of our requests contradicts it; after
    that it counts again once a request confirms it.
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


PATIENCE = 4.0
"""A request is given up after this many times the recent time."""
PROGRESS_FADE = 1 / 50
STALE_S = 1.0
GIVEN_UP = 0.5
"""A request given up counts as this share of its time, so the next one gets twice as long."""


class TrackedRequest(Protocol):
    """A request at the replica: a `ReplicaLease`, which documents the fields."""

    timeout_s: float
    source: str | None
    epoch: int
    sent_s: float
    moved_s: float
    overtaken_s: float
    ended: bool
    ignore_silence: bool
    metrics_only: bool
    blocks: Sequence[int]

    def set_aside(self) -> None: ...

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]: ...

    def mark_stalled(self, why: str) -> None: ...


class Peak:
    """The longest recent time: rises at once, and falls by a fiftieth of the difference with each shorter
    one.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        more_s = seconds - self.seconds
        self.seconds += more_s if more_s > 0 else more_s * PROGRESS_FADE


class RequestProgress:
    """Progress of one replica's requests.

    A request that waits in order at a working replica is not late; if a later one overtakes it, its time
    starts. It is overdue after its own `timeout_s`, or after `PATIENCE` times the recent time of the same
    phase, if that is longer.
    """

    def __init__(self) -> None:
        self.moved_s = -math.inf
        self._in_order: OrderedDict[TrackedRequest, None] = OrderedDict()
        self._overtaken: set[TrackedRequest] = set()
        self._silences = Peak()
        self._firsts = Peak()
        self._gaps = Peak()

    @property
    def longest_wait_s(self) -> float:
        return PATIENCE * self._firsts.seconds

    @property
    def overtaken(self) -> int:
        return len(self._overtaken)

    def moved(self, now_s: float) -> None:
        self.moved_s = now_s

    def sent(self, request: TrackedRequest) -> None:
        self._in_order[request] = None

    def began(self, request: TrackedRequest, now_s: float) -> None:
        self._firsts.add(now_s - request.sent_s)
        self._overtaken.discard(request)
        if math.isnan(request.overtaken_s):
            self._silences.add(now_s - max(self.moved_s, request.sent_s))
            while self._in_order:
                first, _ = self._in_order.popitem(last=False)
                if first is request:
                    break
                first.overtaken_s = now_s
                self._overtaken.add(first)
                first.set_aside()
        self.moved_s = request.moved_s = now_s

    def set_aside_stale(self, now_s: float) -> None:
        for request in self._in_order:
            if now_s - request.sent_s <= max(STALE_S, PATIENCE * self._firsts.seconds):
                break
            request.set_aside()

    def continued(self, request: TrackedRequest, now_s: float) -> None:
        self._gaps.add(now_s - request.moved_s)
        self.moved_s = request.moved_s = now_s

    def ended(self, request: TrackedRequest) -> None:
        self._in_order.pop(request, None)
        self._overtaken.discard(request)

    def overdue(
        self, request: TrackedRequest, *, begun: bool, now_s: float, here_since_s: float
    ) -> tuple[float, bool]:
        """Return how long a stalled request made no progress, else 0; and whether the whole replica hangs.

        `here_since_s`: since when this process has run without a pause.
        """
        if begun:
            since_s, peak, hangs = request.moved_s, self._gaps, False
        elif not math.isnan(request.overtaken_s):
            since_s, peak, hangs = request.overtaken_s, self._firsts, False
        else:
            since_s, peak, hangs = max(request.sent_s, self.moved_s), self._silences, True
        silent_s = now_s - max(since_s, here_since_s)
        if request.ignore_silence or silent_s <= max(request.timeout_s, PATIENCE * peak.seconds):
            return 0.0, False
        peak.add(GIVEN_UP * silent_s)
        return silent_s, hangs
