"""Whether a replica may get requests (a circuit breaker with a slow start), and which of them have stalled.

Time limits follow progress: a request that waits in order at a working replica is not late. If a later
request overtakes it, its time starts.
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
class Accusation:
    """What failed requests hold against a replica until a probe decides. `shuts`: a failed probe shuts it;
    else it only pauses as it asked."""

    why: str
    at_least_s: float | None = None
    shuts: bool = True


class Health:
    """The state of one replica. Times are passed in.

    `up`: no limit, or that of a slow start. `shut`: nothing is sent. `trial`: it has just joined, and one
    request may test it. `accused`: what a probe must confirm (`convict`) or refute (`acquit`). Requests sent
    before the replica was shut have an older `epoch` and count no more.
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
        self.accused: Accusation | None = None

    def room(self, in_flight: int) -> bool:
        """Whether one more request may be sent."""
        return self.state != "shut" and in_flight < self.limit

    def start_slowly(self) -> None:
        """Let one request test it: it has just joined."""
        self.state, self.limit = "trial", 1.0

    def sign(self, now_s: float) -> None:
        """Note bytes of an answer."""
        self._sign_s = now_s

    def succeeded(self, epoch: int, now_s: float, *, first: bool = True, whole: bool = True) -> None:
        """Count a request of `epoch` that got its `first` token, its complete answer (`whole`), or both.

        First tokens reopen a replica, but do not make up for answers that break off.
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
                self.accused = Accusation(why, at_least_s)

    def accuse(self, why: str) -> None:
        """Accuse it of hanging."""
        self.accused = Accusation(why)

    def refused(self, why: str) -> None:
        """Accuse it of refusing requests although it has hardly any."""
        self.accused = self.accused or Accusation(why, shuts=False)

    def acquit(self) -> None:
        """Drop the accusation: a probe passed, so the requests were at fault."""
        self.accused = None
        if self.state == "trial":
            self.state = "up"
        self._forget_failures()

    def convict(self, now_s: float) -> None:
        """Act on the accusation: a probe failed, too."""
        accused, self.accused = self.accused, None
        if accused is not None and accused.shuts and self.state != "shut":
            self.shut(accused.why, now_s, at_least_s=accused.at_least_s)

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
        self.accused = None
        self.until_s = now_s + max(self._wait_s, min(at_least_s or 0.0, self._rules.max_wait_s))
        self._wait_s = min(self._wait_s * 2, self._rules.max_wait_s)

    def _forget_failures(self) -> None:
        self._failures = 0
        self._sources.clear()


PATIENCE = 4.0
"""Something may take this many times longer than recently before it is given up."""
PROGRESS_FADE = 1 / 50
STALE_S = 1.0
GIVEN_UP = 0.5
"""What was given up counts as having taken this share of its time, so the next gets twice as long."""


class Tracked(Protocol):
    """A request at the replica. `timeout_s`: the longest time without progress."""

    timeout_s: float
    epoch: int
    """The replica's `Health.epoch` when it was sent."""
    sent_s: float
    moved_s: float
    """When it last made progress or was sent."""
    passed_s: float
    """When a later request began before it; NaN if none did."""
    quiet: bool
    """Set while silence is not the replica's fault."""
    unseen: bool
    """Set while an answer in one piece is awaited: only metrics show that the replica works."""
    blocks: Sequence[int]
    """Hashes of the prompt's prefix blocks."""

    def set_aside(self) -> None:
        """Stop holding back other requests."""
        ...

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `Progress.overdue`."""
        ...

    def mark_stalled(self, why: str) -> None:
        """Give the request up: the replica hangs or ignores it."""
        ...


class Peak:
    """The longest recent time: rises at once, and falls by a fiftieth of the difference with each shorter
    one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        more_s = seconds - self.seconds
        self.seconds += more_s if more_s > 0 else more_s * PROGRESS_FADE


class Progress:
    """Progress of one replica's requests.

    A request is overdue after its own `timeout_s`, or after `PATIENCE` times the recent time of the same
    phase, if that is longer. Requests that were given up count, too.
    """

    def __init__(self) -> None:
        self.moved_s = -math.inf
        """When the replica last showed that it works."""
        self._in_order: OrderedDict[Tracked, None] = OrderedDict()
        self._overtaken: set[Tracked] = set()
        self._silences = Peak()
        self._firsts = Peak()
        self._gaps = Peak()

    @property
    def longest_wait_s(self) -> float:
        """The longest time that a first token may take."""
        return PATIENCE * self._firsts.seconds

    @property
    def overtaken(self) -> int:
        """How many requests have not begun although later ones have: they wait for no place."""
        return len(self._overtaken)

    def moved(self, now_s: float) -> None:
        """Note a sign that the replica works."""
        self.moved_s = now_s

    def sent(self, request: Tracked) -> None:
        self._in_order[request] = None

    def began(self, request: Tracked, now_s: float) -> None:
        """Note the first content of an answer. Requests sent before it are overtaken."""
        self._firsts.add(now_s - request.sent_s)
        self._overtaken.discard(request)
        if math.isnan(request.passed_s):
            self._silences.add(now_s - max(self.moved_s, request.sent_s))
            while self._in_order:
                first, _ = self._in_order.popitem(last=False)
                if first is request:
                    break
                first.passed_s = now_s
                self._overtaken.add(first)
                first.set_aside()
        self.moved_s = request.moved_s = now_s

    def set_aside_stale(self, now_s: float) -> None:
        """Set aside requests that wait much longer than others did recently."""
        for request in self._in_order:
            if now_s - request.sent_s <= max(STALE_S, PATIENCE * self._firsts.seconds):
                break
            request.set_aside()

    def went_on(self, request: Tracked, now_s: float) -> None:
        """Note more content of an answer."""
        self._gaps.add(now_s - request.moved_s)
        self.moved_s = request.moved_s = now_s

    def ended(self, request: Tracked) -> None:
        self._in_order.pop(request, None)
        self._overtaken.discard(request)

    def overdue(
        self, request: Tracked, *, begun: bool, now_s: float, here_since_s: float
    ) -> tuple[float, bool]:
        """Return how long a stalled request made no progress, else 0; and whether the whole replica hangs.

        `here_since_s`: since when this process has run without a pause.
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
