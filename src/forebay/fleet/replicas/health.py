"""Whether a replica may get requests: a circuit breaker with a slow start, fed by checks and by traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

State = Literal["up", "shut", "trial"]


@dataclass(frozen=True, slots=True)
class HealthRules:
    """`failures` without a success between them shut a replica, or `failures_alone` one that is alone, and so
    do `missed_checks`.

    It stays shut for `first_wait_s`, doubled each time that it fails again, up to `max_wait_s`. Then one
    passed check lets one request through, and each first token lets one more in flight, and halves that time;
    after `start_tokens` of them there is no limit any more.
    """

    failures: int = 3
    failures_alone: int = 32
    missed_checks: int = 2
    first_wait_s: float = 1.0
    max_wait_s: float = 30.0
    start_tokens: int = 32


RULES = HealthRules()


class Health:
    """The state of one replica. Moments are passed in.

    `up`: no limit, or a slow start's. `shut`: nothing is sent. `trial`: one request may show that it works.
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
        self._missed = 0
        self._sign_s = -math.inf

    def room(self, in_flight: int) -> bool:
        """Whether one more request may be sent."""
        return self.state != "shut" and in_flight < self.limit

    def start_slowly(self) -> None:
        """It has just come: its first tokens open it."""
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
            self._failures = 0
        self.state = "up"
        if first and self.limit < math.inf:
            self.limit += 1
            self._wait_s = max(self._rules.first_wait_s, self._wait_s / 2)
            if self.limit > self._rules.start_tokens:
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
    ) -> None:
        """A request that was sent in `epoch` failed by the replica's fault.

        It takes as many failures as there are requests `in_flight` still: of many, some may fail in a row by
        chance. `at_least_s`: how long the replica itself asked to be left alone; up to `max_wait_s` it is.
        """
        if epoch != self.epoch or self.state == "shut":
            return
        self._failures += 1
        enough = max(self._rules.failures_alone if alone else self._rules.failures, in_flight)
        if self.state == "trial" or self._failures >= enough or at_least_s is not None:
            self.shut(why, now_s, at_least_s=at_least_s)

    def check_passed(self, now_s: float) -> None:
        """It says that it is well. That alone opens nothing that requests have shut before its time."""
        self._missed = 0
        if self.state == "shut" and now_s >= self.until_s:
            self.state, self.limit = "trial", 1.0

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
        self._failures = 0
        self.until_s = now_s + max(self._wait_s, min(at_least_s or 0.0, self._rules.max_wait_s))
        self._wait_s = min(self._wait_s * 2, self._rules.max_wait_s)
