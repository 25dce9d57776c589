"""Second stage: detect the rising terms of one shard.

In every tick, `Surprise` tests each term: has its share of the stream risen over the last 15 s, minute or
four minutes, compared with the hours before? A sketch keeps decayed counts in constant memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.apps.samples import Keys, keys_of
from forebay.apps.trends.values import Counts, Entry, Rise, TermSeen, TickReport, TrendSettings, joined

Doubles = npt.NDArray[np.float64]

ROWS = 3
# Odd factors of multiply-shift hashing (Dietzfelbinger et al. 1997), one per row.
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
MAX_DOUBLINGS = 60


class RateSketch:
    """A count-min sketch (Cormode and Muthukrishnan 2005) whose counts decay.

    Decay is forward (Cormode et al. 2009): an entry's weight grows with its tick, so old entries are never
    touched. Hash collisions can only raise a count. Sketches of the same shape can be added.
    """

    def __init__(self, half_lives: Sequence[float], *, width_bits: int = 18) -> None:
        self.half_lives = tuple(half_lives)
        self._bits = width_bits
        self._cells = np.zeros((len(self.half_lives), ROWS, 1 << width_bits), np.float32)
        self._totals = np.zeros(len(self.half_lives))
        self._start = np.zeros(len(self.half_lives), np.int64)
        self._tick: int | None = None

    @property
    def nbytes(self) -> int:
        return int(self._cells.nbytes)

    def advance(self, tick: int) -> None:
        """Move to `tick`. The first call sets the start; going back has no effect."""
        if self._tick is None:
            self._start[:] = tick
            self._tick = tick
        self._tick = max(self._tick, tick)
        for index, half_life in enumerate(self.half_lives):
            doublings = (self._tick - int(self._start[index])) / half_life
            if doublings > MAX_DOUBLINGS:
                factor = 0.5 ** min(doublings, 1000.0)
                self._cells[index] *= np.float32(factor)
                self._totals[index] *= factor
                self._start[index] = self._tick

    def places(self, keys: Keys) -> npt.NDArray[np.int64]:
        spread = keys.astype(np.uint64)[None, :] * FACTORS[:, None]
        return (spread >> np.uint64(64 - self._bits)).astype(np.int64)

    def add(self, places: npt.NDArray[np.int64], counts: npt.ArrayLike, total: float) -> None:
        amounts = np.asarray(counts, np.float64)
        for index, weight in enumerate(self._weights()):
            for row in range(ROWS):
                np.add.at(self._cells[index, row], places[row], (amounts * weight).astype(np.float32))
            self._totals[index] += total * weight

    def read(self, places: npt.NDArray[np.int64]) -> Doubles:
        found = np.empty((len(self.half_lives), *places.shape))
        for index, weight in enumerate(self._weights()):
            for row in range(ROWS):
                found[index, row] = self._cells[index, row, places[row]]
            found[index] /= weight
        return found

    def totals(self) -> Doubles:
        return self._totals / self._weights()

    def _weights(self) -> Doubles:
        tick = 0 if self._tick is None else self._tick
        return np.asarray(2.0 ** ((tick - self._start) / np.asarray(self.half_lives)), np.float64)

    def __iadd__(self, other: RateSketch) -> RateSketch:
        if (self.half_lives, self._bits) != (other.half_lives, other._bits):
            raise ValueError("sketches of different forms do not add up")
        if other._tick is None:
            return self
        self.advance(other._tick)
        # Weight 1 belongs to the start tick of each sketch; convert from the other's start to ours.
        factors = 2.0 ** ((other._start - self._start) / np.asarray(self.half_lives))
        for index, factor in enumerate(factors):
            self._cells[index] += other._cells[index] * np.float32(factor)
            self._totals[index] += other._totals[index] * factor
        return self

    def state(self) -> list[Any]:
        return [
            list(self.half_lives), self._bits, self._tick, self._start.tolist(), self._totals.tolist(),
            self._cells.tobytes(),
        ]  # fmt: skip

    @classmethod
    def restore(cls, state: Sequence[Any]) -> RateSketch:
        half_lives, bits, tick, start, totals, cells = state
        self = cls(half_lives, width_bits=bits)
        self._tick = tick
        self._start = np.array(start, np.int64)
        self._totals = np.array(totals)
        self._cells = np.frombuffer(cells, np.float32).reshape(self._cells.shape).copy()
        return self


class Surprise:
    """Evidence in nats that a share of the stream has risen, from decayed counts; elementwise.

    A decayed count far above its mean consists mostly of new posts, so it is weaker evidence than its
    variance suggests. This is the Chernoff bound of a sum of Poisson counts with decaying weights, with the
    share of both periods together as the mean. Almost without decay it equals `rates.rise`.
    """

    def __init__(self, half_life: float) -> None:
        weights = 0.5 ** (np.arange(max(1, int(17 * half_life))) / half_life)
        tilt = np.concatenate([np.linspace(0.01, 3, 300), np.linspace(3.05, 40, 740)])[:, None]
        grown = np.exp(tilt * weights)
        times = (grown * weights).sum(axis=1) / weights.sum()
        nats = tilt[:, 0] * times - (grown - 1).sum(axis=1) / weights.sum()
        self._log_times = np.log(times)
        self._worth = nats / _poisson_nats(times)
        """How many plain counts a decayed count is worth, by its ratio to the mean."""

    def __call__(
        self, count: npt.ArrayLike, posts: npt.ArrayLike, before: npt.ArrayLike, past: npt.ArrayLike
    ) -> Doubles:
        """Compare `count` in `posts` now with `before` in `past` posts of history; 0 if nothing has risen."""
        k, n, b, m = (np.asarray(each, np.float64) for each in (count, posts, before, past))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (k + b) / (n + m)
            times = k / (share * n)
            worth = np.interp(np.log(times), self._log_times, self._worth)
            nats = share * n * _poisson_nats(times) * worth + share * m * _poisson_nats(b / (share * m))
            risen = (n > 0) & (m > 0) & (k * m > b * n)
        return np.where(risen, nats, 0.0)


def _poisson_nats(times: Doubles) -> Doubles:
    nats: Doubles = np.where(times > 0, times * np.log(times), 0.0) - times + 1
    return nats


WARM_TICKS = 120


class RisingTerms:
    """The rising terms of one shard. Not thread-safe. Takes ticks in order, each in any number of parts.

    Memory is bounded: if more than `max_warm` terms rise at once, those with the least evidence wait.
    """

    def __init__(self, settings: TrendSettings) -> None:
        self.settings = settings
        ticks = [seconds / settings.tick_s for seconds in settings.windows_s]
        history = settings.history_s / settings.tick_s
        self._sketch = RateSketch([*ticks, history], width_bits=settings.width_bits)
        self._surprises = [Surprise(each) for each in ticks]
        # For each age in ticks of a constant excess: its count in the shortest window divided by that in the
        # longest.
        ages = np.arange(1, int(4 * ticks[-1]) + 1)
        kept_short, kept_long = 0.5 ** (1 / ticks[0]), 0.5 ** (1 / ticks[-1])
        self._fill = (1 - kept_short**ages) / (1 - kept_short) * (1 - kept_long) / (1 - kept_long**ages)
        self._warm: dict[str, int] = {}
        self._tick: int | None = None
        self._closed = False
        self._present: dict[str, Entry] = {}
        """Terms of the current tick that are frequent or warm."""
        self._texts: dict[int, str] = {}
        self.late = 0

    @property
    def nbytes(self) -> int:
        return self._sketch.nbytes

    def is_later(self, tick: int) -> bool:
        return self._tick is not None and tick > self._tick

    def add(self, counts: Counts) -> None:
        """Count posts of the current tick, or start a later one if the current is closed.

        Posts of closed ticks are dropped and counted in `late`. Raises `ValueError` for a later tick while
        one is open.
        """
        if self._tick is not None and (
            counts.tick < self._tick or (counts.tick == self._tick and self._closed)
        ):
            self.late += counts.posts
            return
        if self._tick is None or counts.tick > self._tick:
            if self._tick is not None and not self._closed:
                raise ValueError(f"tick {self._tick} is still open")
            self._tick, self._closed = counts.tick, False
            self._sketch.advance(counts.tick)
        terms = list(counts.terms)
        places = self._sketch.places(keys_of(terms))
        numbers = np.fromiter((entry[0] for entry in counts.terms.values()), np.float64, len(terms))
        self._sketch.add(places, numbers, counts.posts)
        often = self._sketch.read(places)[:-1].min(axis=1).max(axis=0) >= self.settings.least_posts
        for term, is_often in zip(terms, often.tolist(), strict=True):
            if is_often or term in self._warm:
                known, new = self._present.get(term), counts.terms[term]
                self._present[term] = new if known is None else joined(known, new)
                for number in new[1:]:
                    if number in counts.texts:
                        self._texts[number] = counts.texts[number]

    def close(self) -> TickReport | None:
        if self._tick is None or self._closed:
            return None
        risen, counts = self._risen()
        self._warm.update(dict.fromkeys(risen, self._tick))
        since = self._tick - WARM_TICKS
        self._warm = {term: seen for term, seen in self._warm.items() if seen >= since}
        if len(self._warm) > self.settings.max_warm:
            self._warm = self._warmest(risen)
        rising = {
            term: TermSeen(entry, tuple(counts[:, index].tolist()), risen.get(term))
            for index, (term, entry) in enumerate(self._present.items())
            if term in self._warm
        }
        numbers = {number for seen in rising.values() for number in seen.entry[1:]}
        texts = {number: text for number, text in self._texts.items() if number in numbers}
        self._present.clear()
        self._texts.clear()
        self._closed = True
        return TickReport(self._tick, self._posts_per_s(), rising, texts)

    def _warmest(self, risen: dict[str, Rise]) -> dict[str, int]:
        def order(term: str) -> tuple[int, float, str]:
            return -self._warm[term], -risen[term].score if term in risen else 0.0, term

        kept = set(sorted(self._warm, key=order)[: self.settings.max_warm])
        return {term: seen for term, seen in self._warm.items() if term in kept}

    def _risen(self) -> tuple[dict[str, Rise], Doubles]:
        """Terms with at least half the evidence of a trend, and the smallest decayed counts of all terms.

        The counts have the shape (windows and then history, terms).
        """
        settings = self.settings
        middle = len(settings.windows_s) // 2
        terms = list(self._present)
        if not terms:
            return {}, np.zeros((len(settings.windows_s) + 1, 0))
        held, totals = self._sketch.read(self._sketch.places(keys_of(terms))), self._sketch.totals()
        recent, history = held[:-1], held[-1]
        posts, past = totals[:-1, None, None], totals[-1]
        # History without the window, for the terms and for all posts.
        before, since = np.maximum(history - recent, 0), np.maximum(past - posts, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            times = (recent / posts) / (before / since)
        times = np.where(before > 0, times, np.inf)
        # A hash collision with another rising term affects one row; all rows have to agree.
        fits = ((times >= settings.least_ratio) & (recent >= settings.least_posts)).all(axis=1)
        fitting = np.flatnonzero(fits.any(axis=0))
        counts = zip(self._surprises, recent[..., fitting], posts, before[..., fitting], since, strict=True)
        evidence = np.stack([surprise(*window).min(axis=0) for surprise, *window in counts])
        scores = np.where(fits[:, fitting], evidence, 0)
        window = scores.argmax(axis=0)
        best = scores.max(axis=0)
        found = {}
        now_ms = int((self._tick or 0) + 1) * settings.tick_ms
        for place in np.flatnonzero(best >= settings.least_nats / 2).tolist():
            index, fast = int(fitting[place]), int(window[place])
            base = float(before[middle, :, index].min() / max(float(since[middle, 0, 0]), 1.0))
            share = float(recent[fast, :, index].min() / posts[fast, 0, 0])
            excess = recent[[0, -1], :, index].min(axis=1) - base * posts[[0, -1], 0, 0]
            onset_ms = now_ms - int(1000 * self._age_s(*excess.tolist()))
            found[terms[index]] = Rise(float(best[place]), base, share, onset_ms)
        return found, held.min(axis=1)

    def _age_s(self, short: float, long: float) -> float:
        """How long a constant excess has lasted.

        The shortest and the longest window first hold the same count of it; then the short one saturates.
        """
        if short <= 0 or long <= 0:
            return self.settings.tick_s / 2
        ticks = np.arange(1, len(self._fill) + 1)
        age = float(np.interp(-short / long, -self._fill, ticks))
        return (age - 0.5) * self.settings.tick_s

    def _posts_per_s(self) -> float:
        middle = len(self.settings.windows_s) // 2
        ticks = self.settings.windows_s[middle] / self.settings.tick_s
        weight = float(1 / (1 - 0.5 ** (1 / ticks)))
        return float(self._sketch.totals()[middle]) / (weight * self.settings.tick_s)

    def state(self) -> list[Any]:
        return [
            self._sketch.state(), list(self._warm.items()), self._tick, self._closed,
            list(self._present.items()), list(self._texts.items()), self.late,
        ]  # fmt: skip

    @classmethod
    def restore(cls, settings: TrendSettings, state: Sequence[Any]) -> RisingTerms:
        sketch, warm, tick, closed, present, texts, late = state
        self = cls(settings)
        self._sketch = RateSketch.restore(sketch)
        self._warm = dict(warm)
        self._tick, self._closed, self.late = tick, closed, late
        self._present = {term: (count, first, last) for term, (count, first, last) in present}
        self._texts = dict(texts)
        return self
