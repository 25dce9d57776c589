"""Finds how many requests at once give a replica its highest throughput, by trying more and fewer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MIN_PATIENCE_S, PATIENCE = 1.0, 4.0
"""After this many first waits without another start, the replica starts no more of its requests."""
FLOW, FLAT = 2, 3
"""Tokens per request in a measurement; measurements in a row without a rise, one of which may be in a pause.
"""
FULL = 0.75


class Rate:
    def __init__(self, wanted: float, skip: int, now_s: float) -> None:
        self._wanted = wanted
        self._skip = skip
        self._since_s = self.last_s = now_s
        self.seen = 0

    def add(self, now_s: float) -> None:
        self.seen += 1
        if self.seen <= self._skip:
            self._since_s = now_s
        self.last_s = now_s

    def pause(self, seconds: float) -> None:
        self._since_s += seconds

    @property
    def count(self) -> int:
        return max(0, self.seen - self._skip)

    @property
    def complete(self) -> bool:
        return self.count >= self._wanted

    @property
    def per_s(self) -> float:
        return self.count / max(self.last_s - self._since_s, 1e-9)


class Opening:
    def __init__(self) -> None:
        self.begun = 0
        self.slots = math.inf
        self.per_s = 0.0
        self.flat = 0
        self._first_s = math.inf
        self._grew_s = -math.inf
        self._gaps_s, self._gaps = 0.0, 0

    def add(self, begun: int, waited_s: float, now_s: float) -> None:
        self._first_s = min(self._first_s, waited_s)
        if begun > self.begun:
            self.begun, self._grew_s = begun, now_s

    def flowed(self, begun: int, gap_s: float, tokens: int = 1) -> float | None:
        self._gaps_s += gap_s
        self._gaps += tokens
        if self._gaps < FLOW * begun:
            return None
        mean_s = self._gaps_s / self._gaps
        self.interrupt()
        return begun / max(mean_s, 1e-9)

    def interrupt(self) -> None:
        self._gaps_s, self._gaps = 0.0, 0

    def full(self, there: int, limit: int, now_s: float) -> bool:
        if not self.begun or there < FULL * limit or there <= self.begun:
            return False
        if now_s - self._grew_s <= max(MIN_PATIENCE_S, PATIENCE * self._first_s):
            return False
        self.slots = self.begun
        return True


FIRST, FIRST_SHOWN = 32, 256
"""Most servers run `FIRST` at once or queue them at no cost; the other is for one that reports its queue."""
GROWTH = 2.0
KV_FULL = 0.9
MORE_SLOTS, RISES = 1.1, 1.1
"""If a replica works on this many times its former maximum, it has more slots now; and how much a doubling
must raise the rate for another to follow.
"""
UP, DOWN = 1.5, 0.5
MORE, SAME = 1.06, 0.97
"""How much more must raise the rate to be kept, and how far fewer may lower it."""
MORE_FOR_GOOD, MORE_TO_CLIMB = 1.12, 1.25
WORSE, SURE = 0.8, 16
"""A trial of fewer ends once the rate is this low over this many answers, or over the limit."""
TIMES, LEAST, ENOUGH = 4, 64, 256
DRIFT, OVERDUE, STUCK = 1.25, 2.5, 1.5
"""A trial does not count if the rates before and after it differ by more than the first. If answers take the
second times longer, another cause is assumed. A trial of fewer ends after the third, in answer times without
an answer.
"""
REST_S, MAX_REST_S, COST = 10.0, 320.0, 20.0
"""Seconds between trials, doubled after each without effect; and how much longer after a costly one."""
SLOW_S, SLOWLY_DOWN, LONG_S = 10.0, 0.75, 60.0
"""If one measurement takes longer than the first, fewer are tried in a smaller step; if longer than the last,
never.
"""
NO_TIME_S = 0.25
"""Never fewer than are answered in this time: it would gain nothing."""

Phase = Literal["climb", "rest", "trial", "back"]


@dataclass(slots=True, eq=False)
class LimitTurn:
    """Lets one limit at a time try another number, so that effects are not mixed up."""

    holder: ConcurrencyLimit | None = None


class ConcurrencyLimit:
    """The most requests at a time. Not thread-safe.

    It starts at `FIRST` and doubles while the replica works on nearly all of them, until no more tokens flow.
    Without tokens it grows by one with each answer, until a doubling raises the rate too little. Later it
    sometimes tries half as many, or half as many more, between two measurements. Nothing is learned while
    fewer requests are there than allowed. If answers take longer than `most_s`, the limit falls in
    proportion.
    """

    def __init__(
        self,
        *,
        most: float = math.inf,
        most_s: float = math.inf,
        turn: LimitTurn | None = None,
    ) -> None:
        self._most = most
        self._most_s = most_s
        self._turn = turn or LimitTurn()
        self._limit = min(float(FIRST), most)
        self._start = Opening()
        self._careful = False
        self._kv_usage = 0.0
        self._phase: Phase = "climb"
        self._up = False
        self._rate: Rate | None = None
        self._climbed_from = self._looked_at = self._limit
        self._climbed_per_s = 0.0
        self._base = self._limit
        self._base_per_s = self._tried_per_s = 0.0
        self._tried = self._limit
        self._wider = 0.0
        self._slow = False
        self._empty_since_s: float | None = None
        self._began_s = self._due_s = self._cut_s = -math.inf
        self._rest_s = REST_S

    @property
    def limit(self) -> int:
        return int(self._limit)

    def began(self, now_s: float) -> None:
        if self._rate is None:
            self._rate = Rate(self._limit, 0, now_s)
        elif self._empty_since_s is not None:
            self._rate.pause(now_s - self._empty_since_s)
        self._empty_since_s = None

    def begun(self, begun: int, sent_s: float, now_s: float) -> None:
        if self._phase == "rest" and begun > MORE_SLOTS * self._start.slots:
            # It has more slots than before: start again.
            self._phase, self._careful = "climb", False
            self._start = Opening()
            self._look(0, now_s)
        self._start.add(begun, now_s - sent_s, now_s)

    def flowed(self, begun: int, gap_s: float, now_s: float, *, tokens: int = 1) -> None:
        if self._phase != "climb" or self._careful:
            return
        if begun < FULL * self.limit or self._kv_usage >= KV_FULL:
            self._start.interrupt()
            return
        per_s = self._start.flowed(begun, gap_s, tokens)
        if per_s is None:
            return
        if per_s < RISES * self._start.per_s:
            self._start.flat += 1
            if self._start.flat < FLAT:
                return
            self._base = self._climbed_from
            self._settle(begun, now_s)
        elif self._limit >= self._most:
            self._base = self._limit
            self._settle(0, now_s)
        else:
            self._climbed_from, self._start.per_s, self._start.flat = self._limit, per_s, 0
            self._grow(begun)

    def reported(self, running: float, waiting: float, kv_usage: float, now_s: float) -> None:
        self._kv_usage = kv_usage
        if self._phase != "climb" or self._careful or self._start.begun:
            return
        if running >= FULL * self.limit and not waiting and kv_usage < KV_FULL:
            self._grow(running)
            self._look(0, now_s)

    def forget_tokens(self) -> None:
        self._start = Opening()

    def _grow(self, working: float) -> None:
        self._limit = min(max(self._limit, GROWTH * working), self._most)

    def answered(self, there: int, sent_s: float, now_s: float) -> None:
        if there <= 1:
            self._empty_since_s = now_s
        if self._rate is None:
            return
        took_s = now_s - sent_s
        if took_s > self._most_s:
            self._cut(self._most_s / took_s, "rest", sent_s, now_s)
        elif self._slow and took_s < self._most_s / 2 and sent_s >= self._cut_s:
            self._phase, self._slow = "climb", False
            self._look(0, now_s)
        if there < FULL * self.limit:
            self._look(0, now_s)
            return
        self._rate.add(now_s)
        match self._phase:
            case "climb":
                self._climb(self._rate, now_s)
            case "rest":
                if self._rate.complete:
                    self._try(self._rate, now_s)
            case _:
                self._compare(self._rate, there, now_s)

    def look(self, there: int, now_s: float) -> None:
        """End a trial that slow calls block; call it now and then, with `there` requests at the replica."""
        if self._rate is None or self._empty_since_s is not None:
            return
        if self._phase == "climb":
            if not self._careful and self._start.full(there, self.limit, now_s):
                self._base = min(max(1.0, math.ceil(self._start.slots / FULL)), self._most)
                self._settle(there, now_s)
            return
        if (now_s - self._rate.last_s) * self._base_per_s <= STUCK * self._base:
            return
        if self._phase == "trial" and not self._up:
            self._keep(self.limit, now_s, COST * (now_s - self._began_s))
        elif self._phase == "rest" and self._base < self._wider:
            self._base, self._wider = self._wider, 0.0
            self._settle(0, now_s, REST_S)

    def start_high(self) -> None:
        if self._phase == "climb" and not self._start.begun and not self._careful:
            self._limit = min(max(self._limit, FIRST_SHOWN), self._most)

    def waited(self, took_s: float, usual_s: float, sent_s: float, now_s: float) -> None:
        """Lower the limit if requests wait for each other: a first token took `took_s`, alone it takes
        `usual_s`.
        """
        if took_s > PATIENCE * usual_s and self._limit > PATIENCE:
            share = max(PATIENCE * usual_s / took_s, PATIENCE / self._limit)
            self._cut(share, "rest", sent_s, now_s)

    def missed(self, sent_s: float, now_s: float) -> None:
        self._cut(0.5, "climb", sent_s, now_s)

    def _cut(self, share: float, phase: Phase, sent_s: float, now_s: float) -> None:
        # Requests sent before the last cut do not count again.
        if sent_s >= self._cut_s:
            self._cut_s = now_s
            self._wider = 0.0
            self._base = self._climbed_from = max(1.0, self._limit * share)
            self._climbed_per_s = 0.0
            self._settle(0, now_s, REST_S)
            self._phase, self._slow = phase, phase != "climb"
            self._careful = True
            self._look(0, now_s)

    def _look(self, skip: int, now_s: float) -> None:
        wanted = self._limit if self._phase == "climb" else _wanted(max(self._limit, self._base))
        self._looked_at = self._limit
        self._rate = Rate(wanted, skip, now_s)

    def _climb(self, rate: Rate, now_s: float) -> None:
        if self._start.begun and not self._careful:
            # Tokens show more, and sooner.
            return
        if self._limit < rate.per_s * self._most_s:
            # Beyond this the last one would take too long.
            self._limit = min(self._limit + 1, self._most)
        if not rate.complete:
            return
        rises = rate.per_s >= RISES * self._climbed_per_s
        if not rises or self._limit >= self._most:
            self._base = self._limit if rises else self._climbed_from
            self._settle(int(self._limit), now_s)
            return
        self._climbed_from, self._climbed_per_s = self._looked_at, rate.per_s
        self._look(0, now_s)

    def _try(self, rate: Rate, now_s: float) -> None:
        self._base_per_s = rate.per_s
        least = max(1.0, rate.per_s * NO_TIME_S)
        if self._start.slots < math.inf:
            # A few must wait there to show that it has more slots.
            least = max(least, math.ceil(self._start.slots / FULL))
        slow = self._limit > rate.per_s * self._most_s
        up = (self._up or self._limit <= least) and self._limit < self._most and not slow
        if up:
            tried = min(max(self._limit * UP, self._limit + 1), self._most)
        else:
            look_s = _look_s(self._limit, rate.per_s)
            down = DOWN if look_s <= SLOW_S else SLOWLY_DOWN if look_s <= LONG_S else 1.0
            tried = min(max(self._limit * down, least), self._limit)
        if int(tried) == self.limit:
            self._up = not up
        if int(tried) == self.limit or now_s < self._due_s or self._turn.holder not in (None, self):
            self._look(0, now_s)
            return
        self._turn.holder = self
        self._up, self._phase, self._began_s = up, "trial", now_s
        self._base, self._tried, self._limit = self._limit, tried, tried
        # More show an effect once earlier requests have ended, fewer once the surplus has.
        self._look(int(self._base if up else self._base - tried), now_s)

    def _compare(self, rate: Rate, there: int, now_s: float) -> None:
        took_s = now_s - self._began_s
        late = took_s * self._base_per_s > OVERDUE * max(SURE, rate.seen)
        if self._phase == "trial":
            poor = (
                not self._up
                and rate.count >= max(SURE, self._limit)
                and rate.per_s < WORSE * self._base_per_s
            )
            if late:
                self._settle(there, now_s, self._rest_s)
            elif poor:
                self._keep(there, now_s, COST * took_s)
            elif rate.complete:
                self._tried_per_s = rate.per_s
                self._phase, self._limit, self._began_s = "back", self._base, now_s
                self._look(there, now_s)
        elif late:
            self._settle(there, now_s, self._rest_s)
        elif rate.complete:
            before, after = self._base_per_s, rate.per_s
            gain = self._tried_per_s / math.sqrt(before * after)
            if max(before, after) > DRIFT * min(before, after):
                self._settle(there, now_s, self._rest_s)
            elif self._up and gain >= MORE_TO_CLIMB:
                self._base, self._rest_s = self._tried, REST_S
                self._settle(there, now_s)
                self._phase = "climb"
                self._careful = True
                self._climbed_from = self._tried
                self._climbed_per_s = self._tried_per_s
            elif gain >= self._least_gain(before):
                self._wider = 0.0 if self._up else self._base
                self._base, self._rest_s = self._tried, REST_S
                self._settle(there, now_s, 0.0 if self._up else REST_S)
            else:
                self._keep(0, now_s)

    def _least_gain(self, per_s: float) -> float:
        if not self._up:
            return SAME
        return MORE_FOR_GOOD if _look_s(self._tried, per_s) > LONG_S else MORE

    def _keep(self, there: int, now_s: float, least_s: float = 0.0) -> None:
        self._up = not self._up
        self._rest_s = min(2 * self._rest_s, MAX_REST_S)
        self._settle(there, now_s, max(self._rest_s, least_s))

    def _settle(self, there: int, now_s: float, rest_s: float = 0.0) -> None:
        if self._turn.holder is self:
            self._turn.holder = None
        self._phase, self._limit, self._due_s = "rest", self._base, now_s + rest_s
        self._look(there, now_s)


def _look_s(limit: float, per_s: float) -> float:
    return _wanted(limit) / max(per_s, 1e-9)


def _wanted(limit: float) -> float:
    return min(max(LEAST, TIMES * limit), ENOUGH)
