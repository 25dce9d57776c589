"""How many requests at once: as many as it takes to get the most done, and hardly more.

What a replica gets done with n requests is n over the mean time that one takes (Little's law). So two numbers
are compared by the times seen with each: where more at once take longer in proportion, nothing is gained.
That holds at every speed. A replica that becomes fifty times slower is still kept full by the same number.
"""

from __future__ import annotations

import math
from typing import Literal

FIRST = 4.0
"""Requests at a replica of which nothing is known: few, and more than one that hangs."""
CLIMB, UP, DOWN = 2.0, 1.5, 0.5
"""By what the number is multiplied: until it was too large once; to see if more are better, or fewer enough.
A large step down costs more, but shows so much sooner that it costs less."""
LEAST_UP = 1.25
ROOM = 1.25
"""How many more than were found to be enough there may be: answers come in bursts."""
WORTH, SAME = 0.1, 0.05
"""More are let in where they get more done by at least this share of what they are more by; fewer are enough
where they lose no more than this."""
FULL = 0.75
"""Times count of requests that found at least so much of the number under trial."""
LEAST, NOT_BY_CHANCE, MOST = 4, 8, 32
"""Samples without which nothing is decided: half of the number, between the first and the last of these; more
are not found to be useless without the second."""
LOOKS, MOST_LOOKS = 4, 16
"""After how many samples, in rounds of as many as the number, a comparison in doubt is ended; doubled each
time that one was."""
SURE, CERTAIN = 1.0, 2.5
"""Standard errors by which it must show that a climb goes on, or all stays as it is; that it does not."""
CLOSE_MORE, CLOSE_SAME = 0.15, 0.1
"""Standard errors below which a comparison in doubt is decided by what was seen: that more get more done,
that fewer do not get less done. Else all stays as it is."""
DRIFT = 0.25
"""Share by which times have changed, at equal numbers, when there were two speeds between them."""
DOUBTFUL = 2.0
"""More cannot get more done than by what they are more by: where they seem to, there were two speeds."""
REST = 8.0
REST_S, MOST_REST_S = 10.0, 320.0
"""Between comparisons pass so many times what a request takes, and so many seconds: twice as many each time
that nothing has changed."""
COST = 30.0
"""How many times longer than a trial of fewer the rest after it is: trials cost no more than 2 %."""
QUICK_S, EVEN = 5.0, 1.5
"""Whether fewer are enough is not tried where some take longer than that, or far longer than others (by the
variance of their times, as a share of their mean squared): it would cost too much to find out."""
PATIENCE = 4.0
"""How many times the longest time the last of the requests under trial are awaited."""
VARIANCE, ASSUMED = 0.25, 8
"""The variance of times that is assumed, as a share of their mean squared; how many samples that is worth."""

Place = tuple[int, int]
"""What a request began under: the number of the comparison, and how many there were; 0 where it tells nothing
of them."""
Verdict = Literal["more", "same", "unclear", "doubt"]
Phase = Literal["climb", "descend", "hold"]


class Level:
    """Times seen with about the same number of requests. Past `most` samples older ones fade.

    With a `cohort` only its first so many requests count, and all of them: those that end first are the short
    ones, and would make it look fast beside what was seen over a long time.
    """

    __slots__ = (
        "_cohort",
        "_full",
        "_opened",
        "_square",
        "count",
        "log_n",
        "longest_s",
        "mean_s",
        "most",
        "size",
    )

    def __init__(self, size: float, most: float, *, cohort: int = 0) -> None:
        self.size = size
        self.most = most
        self._cohort = cohort
        self.count = 0.0
        self.mean_s = 0.0
        self.log_n = 0.0
        self.longest_s = 0.0
        self._square = 0.0
        self._opened = 0
        self._full = False

    def open(self, n: int) -> bool:
        """A request begins; whether it counts."""
        if not FULL * int(self.size) <= n <= self.size / FULL + 1:
            return False
        if self._full:
            return False
        self._opened += 1
        self._full = self._opened == self._cohort
        return True

    def lose(self) -> None:
        """One that counts ended without an answer."""
        self._opened -= 1
        self._full = self._full and self._opened >= few(self.size)

    def more(self) -> None:
        """Twice as many count."""
        self._cohort, self._full = 2 * self._cohort, False

    def all(self) -> None:
        """From now on all count, and their newest."""
        self._cohort, self._full = 0, False

    def add(self, n: int, seconds: float) -> None:
        """One that counts took so long."""
        self.count = min(self.count + 1, self.most)
        share = 1 / self.count
        off_s = seconds - self.mean_s
        self.mean_s += off_s * share
        self._square += (off_s * off_s * (1 - share) - self._square) * share
        self.log_n += (math.log(n) - self.log_n) * share
        self.longest_s = max(self.longest_s * (1 - share / 4), seconds)

    @property
    def variance(self) -> float:
        """That of times, as a share of their mean squared; the fewer there are the more of it is assumed."""
        seen = self._square / (self.mean_s * self.mean_s)
        return (seen * self.count + VARIANCE * ASSUMED) / (self.count + ASSUMED)

    @property
    def few(self) -> bool:
        """Whether there are too few samples to decide anything."""
        return self.count < few(self.size)

    @property
    def complete(self) -> bool:
        """Whether all that count have ended, where it has a cohort."""
        return not self._cohort or (self._full and self.count >= self._opened)


def few(size: float) -> float:
    return min(max(LEAST, size / 2), MOST)


def error_of(one: Level, other: Level) -> float:
    """The standard error of the logarithm of the ratio of their times."""
    # The first to come are the short ones: a level with few samples has seen too little of the variance.
    return math.sqrt(max(one.variance, other.variance) * (1 / one.count + 1 / other.count))


def gained(low: Level, high: Level) -> tuple[float, float]:
    """What more requests get done, as a share of what they are more by, and its standard error.

    1: each takes as long as before, so twice as many get twice as much done. 0: they only take longer.
    """
    more_by = high.log_n - low.log_n
    if more_by <= 0:
        return 0.0, math.inf
    return 1 - math.log(high.mean_s / low.mean_s) / more_by, error_of(low, high) / more_by


class Window:
    """The most requests at a time, found by trial.

    It climbs until more at once get no more done, then descends until fewer get less done. From then on it
    tries, now and then, whether more would be better or fewer enough. No trial counts whose replica was
    faster or slower afterwards than before. As long as fewer requests are there than may be, nothing is
    tried. Moments are passed in. Not thread-safe.

    `most`: there are never more. `most_s`: where one takes longer than that there are fewer, unless they get
    less done; and no number is tried with which one would take longer even if nothing more got done, but a
    quarter more always are.
    """

    def __init__(self, *, most: float = math.inf, most_s: float = math.inf) -> None:
        self._most = most
        self._most_s = most_s
        self._size = min(FIRST, most)
        self.number = 0
        """Of the comparison that goes on."""
        self.lasts_s = 0.0
        """How long a request takes, where what is measured is shorter."""
        self._phase: Phase = "climb"
        self._up = True
        self._step = CLIMB
        self._looks = LOOKS
        # What is seen now. While there is a trial, and back from it: what was seen before, and in the trial.
        self._level = Level(self._size, LOOKS * NOT_BY_CHANCE)
        self._base: Level | None = None
        self._trial: Level | None = None
        self._better = False
        self._climbed: list[Level] = []
        self._rest_s = 0.0
        self._due_s = self._begun_s = -math.inf
        self._anyhow = 0.0

    @property
    def limit(self) -> int:
        """How many there may be now; at least one."""
        return int(self._level.size)

    def place(self, there: int) -> Place:
        """A request begins, with which `there` are so many. Then `took` is called for it, or `left`."""
        return self.number, there if self._level.open(there) else 0

    def left(self, place: Place) -> None:
        """One that began under `place` ended without telling anything."""
        number, n = place
        if n and number == self.number:
            self._level.lose()

    def took(self, place: Place, seconds: float, now_s: float) -> None:
        """One that began under `place` took so long, whatever is measured: always from and to the same."""
        number, n = place
        if number != self.number or not n:
            return
        level, base = self._level, self._base
        level.add(n, max(seconds, 1e-9))
        if level.few:
            return
        if base is None:
            if now_s >= self._due_s:
                self._try(level, now_s)
            return
        over = now_s > self._begun_s + PATIENCE * max(base.longest_s, self.lasts_s)
        ended = level.complete or over
        if over and level.size < self._size:
            # It has become slow meanwhile: this could take for ever.
            self._settle(base, now_s)
        elif self._trial is None and (ended or self._phase == "climb"):
            self._judge(base, level, now_s, ended=ended)
        elif self._trial is not None and ended:
            self._confirm(base, self._trial, level, now_s)

    def clears(self, number: float, now_s: float) -> None:
        """The replica gets so many done in no time: there may be as many, however much it is gained by it."""
        self._anyhow = number
        if min(number, self._most) > LEAST_UP * self._level.size:
            self._size = min(number, self._most)
            self._wait(now_s, 0.0)

    def too_many(self, number: int, now_s: float) -> None:
        """What was sent under `number` could not be answered in time: half of them is enough. Of all that
        were sent until now one counts."""
        if number == self.number:
            self._phase, self._up = "hold", True
            self._size = max(1.0, self._size / 2)
            self._wait(now_s, REST_S)

    def anew(self, now_s: float) -> None:
        """From now on something else is measured: what was seen says nothing of it."""
        self._wait(now_s, 0.0)

    def _begin(self, size: float, now_s: float) -> None:
        """From now on there may be so many, and only what begins now counts."""
        self.number += 1
        cohort = 0 if self._base is None else round(max(NOT_BY_CHANCE, few(size)))
        self._level = Level(size, self._looks * max(NOT_BY_CHANCE, size), cohort=cohort)
        self._begun_s = now_s

    def _wait(self, now_s: float, rest_s: float) -> None:
        """Stay at the present size; the next trial comes after so long."""
        self._base = self._trial = None
        self._climbed.clear()
        self._due_s = now_s + rest_s
        self._begin(self._size, now_s)

    def _settle(self, base: Level, now_s: float) -> None:
        """All stays as it is; the next trial goes the other way, after a longer rest."""
        if self._phase == "climb":
            self._phase, self._up = "descend", False
            self._wait(now_s, REST * base.mean_s)
            return
        cost_s = 0.0 if self._up else COST * (now_s - self._begun_s)
        self._phase, self._up, self._step = "hold", not self._up, UP
        self._rest_s = min(max(2 * self._rest_s, REST_S), MOST_REST_S)
        self._wait(now_s, max(self._rest_s, REST * base.mean_s, cost_s))

    def _try(self, base: Level, now_s: float) -> None:
        if self._size >= self._most:
            if self._phase == "climb":
                self._settle(base, now_s)
                return
            self._up = False
        elif self._size < 2:
            self._up = True
        if base.mean_s > self._most_s and self._size > 1:
            self._up = False
        elif not self._up and (self._size * DOWN < self._anyhow or not self._soon(base)):
            # What it would cost is sure, and what it would gain is not.
            self._phase, self._up = "hold", True
            self._wait(now_s, REST_S)
            return
        self._base, self._trial = base, None
        if self._up:
            step = min(self._step, max(LEAST_UP, self._most_s / base.mean_s))
            self._begin(min(self._most, max(self._size * step, self._size + 1)), now_s)
        else:
            self._begin(max(1.0, self._size * DOWN), now_s)

    def _soon(self, base: Level) -> bool:
        """Whether it would soon be seen how much fewer get done. After a climb it may take its time once."""
        quick = self._phase == "descend" or max(self.lasts_s, base.longest_s) <= QUICK_S
        return quick and base.variance <= EVEN

    def _judge(self, base: Level, level: Level, now_s: float, *, ended: bool) -> None:
        """Compare the number under trial with the one before it; decides as soon as it can be decided."""
        up, climbing = level.size > self._size, self._phase == "climb"
        verdict = self._compare(base, level, WORTH) if up else self._compare(level, base, SAME)
        if climbing and verdict == "more" and not self._useless(level):
            # What was seen in the trial is what the next one is compared with.
            self._climbed.append(base)
            self._size, self._base, self._due_s = level.size, None, now_s
            level.all()
            return
        if not ended:
            return
        if verdict == "doubt":
            if level.count < level.most:
                level.more()
                return
            self._looks = min(2 * self._looks, MOST_LOOKS)
            verdict = "same" if up or base.mean_s > self._most_s else "more"
        elif verdict != "unclear":
            self._looks = LOOKS
        if verdict == "unclear":
            self._wait(now_s, REST * base.mean_s)
        elif verdict == "more" and not up:
            self._settle(base, now_s)
        else:
            if climbing:
                self._base = next((low for low in self._climbed if gained(low, level)[0] < WORTH), base)
                self._size = self._base.size
            # So it is if the replica is still as fast as it was.
            self._trial, self._better = level, not climbing and (verdict == "more") == up
            self._begin(self._size, now_s)

    def _useless(self, level: Level) -> bool:
        """Whether so many get no more done than some number did earlier: each step may be by chance."""
        return any(gained(low, level)[0] < WORTH for low in self._climbed)

    def _compare(self, low: Level, high: Level, least: float) -> Verdict:
        share, error = gained(low, high)
        climbing, level = self._phase == "climb", self._level
        up = level is high
        if share > DOUBTFUL + CERTAIN * error:
            return "unclear"
        if share - (CERTAIN if up and not climbing else SURE) * error > least:
            return "more"
        same = share + (SURE if up and not climbing else CERTAIN) * error < least
        if same and level.count >= NOT_BY_CHANCE:
            return "same"
        if level.count >= level.most and (climbing or error < (CLOSE_MORE if up else CLOSE_SAME)):
            return "more" if share > least else "same"
        return "doubt"

    def _confirm(self, base: Level, trial: Level, level: Level, now_s: float) -> None:
        """Back at the number before the trial: did the replica stay as fast as it was?"""
        error = error_of(level, base)
        if error > DRIFT and level.count < level.most:
            level.more()
            return
        up = trial.size > self._size
        share, _ = gained(level, trial) if up else gained(trial, level)
        drifted = abs(math.log(level.mean_s / base.mean_s)) > DRIFT + CERTAIN * error
        if drifted or (self._better and up != (share > WORTH)):
            self._wait(now_s, REST * level.mean_s)
        elif self._better and up:
            self._size, self._step = trial.size, CLIMB
            self._wait(now_s, 0.0)
        elif self._better:
            self._size = max(1.0, trial.size * ROOM)
            self._wait(now_s, REST * level.mean_s if self._phase == "descend" else REST_S)
        else:
            if self._phase == "climb":
                enough = self._size * math.exp(max(0.0, share) * (trial.log_n - level.log_n))
                self._size = min(trial.size, enough * ROOM)
            self._settle(base, now_s)
