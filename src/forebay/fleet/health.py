"""What a replica may be sent: whether it may get requests at all (a circuit breaker with a slow start), and
which of them it has left lying.

Time limits follow progress. A request that waits at a replica that works on others, in their order, is not
late however slow the replica is. One that was overtaken could have begun, and its time runs from then.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["up", "shut", "trial"]


@dataclass(frozen=True, slots=True)
class HealthRules:
    """`failures` without a success between them shut a replica, or `failures_alone` one that is alone, and so
    do `missed_checks`.

    Failures of one source alone never shut it, as no replica may be able to answer its requests: a probe of
    our own has to fail, too.

    It stays shut for `first_wait_s`, doubled each time that it fails again, up to `max_wait_s`. Then one
    passed probe lets one request through, and each first token lets one more in flight, and halves that time;
    after `start_tokens` of them there is no limit any more. A replica that joined and has never been shut has
    none after its first token.
    """

    failures: int = 3
    failures_alone: int = 32
    missed_checks: int = 2
    first_wait_s: float = 1.0
    max_wait_s: float = 30.0
    start_tokens: int = 32


RULES = HealthRules()
SOURCES = 3
"""Failures from so many sources show that it is the replica."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """What requests hold against a replica, until a probe decides. `shuts`: it is shut if that fails, too;
    else it only gets nothing for as long as it asked."""

    why: str
    at_least_s: float | None = None
    shuts: bool = True


class Health:
    """The state of one replica. Moments are passed in.

    `up`: no limit, or a slow start's. `shut`: nothing is sent. `trial`: it has just joined, and one request
    may show that it works.
    `accused`: what a probe of our own is to confirm (`convict`) or refute (`acquit`).
    A request is told apart by the `epoch` in which it was sent: what was sent before the replica was shut
    says nothing of it afterwards.
    """

    def __init__(self, rules: HealthRules = RULES) -> None:
        self._rules = rules
        self.state: State = "up"
        self.why = ""
        """What shut it last; empty where nothing did."""
        self.epoch = 0
        self.limit = math.inf
        self.until_s = -math.inf
        self._wait_s = rules.first_wait_s
        self._failures = 0
        self._sources: set[str] = set()
        self._missed = 0
        self._sign_s = -math.inf
        self.accused: Accusation | None = None

    def room(self, in_flight: int) -> bool:
        """Whether one more request may be sent."""
        return self.state != "shut" and in_flight < self.limit

    def start_slowly(self) -> None:
        """It has just joined: one request is to show that it works."""
        self.state, self.limit = "trial", 1.0

    def sign(self, now_s: float) -> None:
        """Bytes of an answer came."""
        self._sign_s = now_s

    def succeeded(self, epoch: int, now_s: float, *, first: bool = True, whole: bool = True) -> None:
        """A request sent in `epoch` got its `first` token, all that it was to get (`whole`), or both.

        First tokens open it after a trial, but do not make up for answers that break off.
        """
        self._sign_s = now_s
        if epoch != self.epoch or self.state == "shut":
            return
        self._missed = 0
        if whole:
            self._forget_failures()
        self.state = "up"
        if first and self.limit < math.inf:
            self.limit += 1
            self._wait_s = max(self._rules.first_wait_s, self._wait_s / 2)
            # One that never failed has nothing more to prove.
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
        """A request that was sent in `epoch` failed by the replica's fault, it seems. `source`: whose it was;
        None for one that has nothing to do with any other.

        It takes as many failures as there are requests `in_flight` still: of many, some may fail in a row by
        chance. `at_least_s`: how long the replica itself asked to be left alone; up to `max_wait_s` it is.
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
                self.accused = Accusation(why, at_least_s)

    def accuse(self, why: str) -> None:
        """It looks as if it hung."""
        self.accused = Accusation(why)

    def refused(self, why: str) -> None:
        """It refused a request though it has hardly any, and asks to be left alone."""
        self.accused = self.accused or Accusation(why, shuts=False)

    def acquit(self) -> None:
        """A probe passed: what failed was due to the requests."""
        self.accused = None
        if self.state == "trial":
            self.state = "up"
        self._forget_failures()

    def convict(self, now_s: float) -> None:
        """A probe failed, too."""
        accused, self.accused = self.accused, None
        if accused is not None and accused.shuts and self.state != "shut":
            self.shut(accused.why, now_s, at_least_s=accused.at_least_s)

    def check_passed(self) -> None:
        """It reports that it is well. That alone opens nothing."""
        self._missed = 0

    def due(self, now_s: float) -> bool:
        """Whether a probe may open it again."""
        return self.state == "shut" and now_s >= self.until_s

    def probe_passed(self, now_s: float) -> None:
        """One that is shut has answered a probe."""
        if self.due(now_s):
            self.state, self.limit = "up", 1.0

    def check_failed(self, why: str, began_s: float, now_s: float) -> None:
        """A check that began at `began_s` failed. One that answers requests is not ill."""
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
        self.accused = None
        self.until_s = now_s + max(self._wait_s, min(at_least_s or 0.0, self._rules.max_wait_s))
        self._wait_s = min(self._wait_s * 2, self._rules.max_wait_s)

    def _forget_failures(self) -> None:
        self._failures = 0
        self._sources.clear()


PATIENCE = 4.0
"""How many times longer than was seen lately something may take before it is given up."""
PROGRESS_FADE = 1 / 50
STALE_S = 1.0
GIVEN_UP = 0.5
"""What was given up counts as having taken this share of its time, so that the next gets twice as long."""


class Tracked(Protocol):
    """A request at the replica. `timeout_s`: for how long there may be no progress on it."""

    timeout_s: float
    epoch: int
    """The replica's `Health.epoch` when it was sent."""
    sent_s: float
    moved_s: float
    """When something of its answer came last; when it was sent, before that."""
    passed_s: float
    """Since when one that was sent later has begun; NaN while none has."""
    quiet: bool
    """Set while silence says nothing of the replica."""
    unseen: bool
    """Set while an answer in one piece is awaited: only metrics can show that the replica works."""
    blocks: Sequence[int]
    """Hashes of the prompt's prefix blocks."""

    def set_aside(self) -> None:
        """Others are not to wait for it any longer."""
        ...

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `Progress.overdue`."""
        ...

    def mark_stalled(self, why: str) -> None:
        """The replica hangs, or left this request lying."""
        ...


class Peak:
    """The longest time lately: it is reached at once, and forgotten by a fiftieth with each shorter one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        more_s = seconds - self.seconds
        self.seconds += more_s if more_s > 0 else more_s * PROGRESS_FADE


class Progress:
    """One replica's. It is told of each request that it was sent, that began, that went on and that ended.

    A request is overdue after its own `timeout_s`, or `PATIENCE` times what such a thing took lately where
    that is longer; what was given up counts as seen.
    """

    def __init__(self) -> None:
        self.moved_s = -math.inf
        """When anything showed that the replica works."""
        self._in_order: OrderedDict[Tracked, None] = OrderedDict()
        self._silences = Peak()
        self._firsts = Peak()
        self._gaps = Peak()

    @property
    def longest_wait_s(self) -> float:
        """The longest time that a first token may take, by what it took lately."""
        return PATIENCE * self._firsts.seconds

    def moved(self, now_s: float) -> None:
        """Something shows that the replica works."""
        self.moved_s = now_s

    def sent(self, request: Tracked) -> None:
        self._in_order[request] = None

    def began(self, request: Tracked, now_s: float) -> None:
        """The first content of its answer, or all of it. Those that were sent before it are overtaken."""
        self._firsts.add(now_s - request.sent_s)
        if math.isnan(request.passed_s):
            self._silences.add(now_s - max(self.moved_s, request.sent_s))
            while self._in_order:
                first, _ = self._in_order.popitem(last=False)
                if first is request:
                    break
                first.passed_s = now_s
                first.set_aside()
        self.moved_s = request.moved_s = now_s

    def set_aside_stale(self, now_s: float) -> None:
        """Those that wait for much longer than any did lately do not keep others from being sent."""
        for request in self._in_order:
            if now_s - request.sent_s <= max(STALE_S, PATIENCE * self._firsts.seconds):
                break
            request.set_aside()

    def went_on(self, request: Tracked, now_s: float) -> None:
        """More of an answer that has begun."""
        self._gaps.add(now_s - request.moved_s)
        self.moved_s = request.moved_s = now_s

    def ended(self, request: Tracked) -> None:
        self._in_order.pop(request, None)

    def overdue(
        self, request: Tracked, *, begun: bool, now_s: float, here_since_s: float
    ) -> tuple[float, bool]:
        """For how long there was no progress where that is too long, else 0; and whether on nothing at all.

        `here_since_s`: since when this process itself was there to see it.
        """
        if begun:
            since_s, peak, hangs = request.moved_s, self._gaps, False
        elif not math.isnan(request.passed_s):
            since_s, peak, hangs = request.passed_s, self._firsts, False
        else:
            since_s, peak, hangs = max(request.sent_s, self.moved_s), self._silences, True
        silent_s = now_s - max(since_s, here_since_s)
        if request.quiet or silent_s <= max(request.timeout_s, PATIENCE * peak.seconds):
            return 0.0, False
        peak.add(GIVEN_UP * silent_s)
        return silent_s, hangs
