"""The second stage: which terms of a shard rise, tick by tick.

Per tick every term that came is tested: has its share of the stream risen, over the last quarter of a minute,
over a minute, over four, against the hours before (`rates.rise`)? Counts are decayed counts of a sketch, so
memory does not grow with the terms. Shards of terms do not know of each other: each sees all posts' number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay.apps.trends.sketch import RateSketch
from forebay.apps.trends.ticks import Counts, Entry, joined
from forebay.apps.trends.values import Report, Rise, Seen, TrendSettings
from forebay.detect.rates import Doubles, rise
from forebay.detect.samples import keys_of

WARM_TICKS = 120
"""Ticks for which a term is reported after it last rose."""


class RisingTerms:
    """Terms of one shard that rise. Not thread-safe. Takes ticks in order, each in any number of parts.

    Memory is bounded: the sketch, and as many warm terms as the settings say; where more rise at once, those
    with the least evidence wait.
    """

    def __init__(self, settings: TrendSettings) -> None:
        self.settings = settings
        ticks = [seconds / settings.tick_s for seconds in settings.windows_s]
        history = settings.history_s / settings.tick_s
        self._sketch = RateSketch([*ticks, history], width_bits=settings.width_bits)
        self._worth = worth(settings)
        # Per age in ticks of an even excess: what the shortest window holds of it, over what the longest
        # does.
        ages = np.arange(1, int(4 * ticks[-1]) + 1)
        kept_short, kept_long = 0.5 ** (1 / ticks[0]), 0.5 ** (1 / ticks[-1])
        self._fill = (1 - kept_short**ages) / (1 - kept_short) * (1 - kept_long) / (1 - kept_long**ages)
        self._warm: dict[str, int] = {}
        """Per term that rose the tick in which it last did."""
        self._tick: int | None = None
        self._closed = False
        self._present: dict[str, Entry] = {}
        """What came in the present tick of the terms that come often or are warm."""
        self._texts: dict[int, str] = {}
        self.late = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the sketch; the rest is bounded by the settings."""
        return self._sketch.nbytes

    def is_later(self, tick: int) -> bool:
        """Whether counts of `tick` would close the present one."""
        return self._tick is not None and tick > self._tick

    def add(self, counts: Counts) -> None:
        """Count what came in the present tick, or in a later one once this one is closed. Those of a closed
        tick are dropped, and `late` says how many posts those were. Raises `ValueError` for counts of a later
        tick while this one is open."""
        if self._tick is not None and (
            counts.tick < self._tick or (counts.tick == self._tick and self._closed)
        ):
            self.late += counts.posts
            return
        if self._tick is None or counts.tick > self._tick:
            if self._tick is not None and not self._closed:
                raise ValueError(f"tick {self._tick} is open still")
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

    def close(self) -> Report | None:
        """Nothing more comes in the present tick: what it has to say; None where none is open."""
        if self._tick is None or self._closed:
            return None
        risen, counts = self._risen()
        self._warm.update(dict.fromkeys(risen, self._tick))
        since = self._tick - WARM_TICKS
        self._warm = {term: seen for term, seen in self._warm.items() if seen >= since}
        if len(self._warm) > self.settings.max_warm:
            self._warm = self._warmest(risen)
        told = {
            term: Seen(entry, tuple(counts[:, index].tolist()), risen.get(term))
            for index, (term, entry) in enumerate(self._present.items())
            if term in self._warm
        }
        numbers = {number for seen in told.values() for number in seen.entry[1:]}
        texts = {number: text for number, text in self._texts.items() if number in numbers}
        self._present.clear()
        self._texts.clear()
        self._closed = True
        return Report(self._tick, self._posts_per_s(), told, texts)

    def _warmest(self, risen: dict[str, Rise]) -> dict[str, int]:
        """As many warm terms as may be: those that rose last, of them those with the most evidence."""

        def order(term: str) -> tuple[int, float, str]:
            return -self._warm[term], -risen[term].score if term in risen else 0.0, term

        kept = set(sorted(self._warm, key=order)[: self.settings.max_warm])
        return {term: seen for term, seen in self._warm.items() if term in kept}

    def _risen(self) -> tuple[dict[str, Rise], Doubles]:
        """The present terms that rise, with half the evidence that makes a trend or more, and the least
        decayed counts of all present terms: windows, then history, by terms.
        """
        settings = self.settings
        middle = len(settings.windows_s) // 2
        terms = list(self._present)
        if not terms:
            return {}, np.zeros((len(settings.windows_s) + 1, 0))
        held, totals = self._sketch.read(self._sketch.places(keys_of(terms))), self._sketch.totals()
        recent, history = held[:-1], held[-1]
        posts, past = totals[:-1, None, None], totals[-1]
        # The history's decayed count less the window's: history without the present, for the terms' posts and
        # all.
        before, since = np.maximum(history - recent, 0), np.maximum(past - posts, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            evidence = rise(recent, posts, before, since) * self._worth[:, None, None]
            times = (recent / posts) / (before / since)
        times = np.where(before > 0, times, np.inf)
        fits = (times >= settings.least_ratio) & (recent >= settings.least_posts)
        # A row in which something else rises is overruled by the others.
        scores = np.where(fits, evidence, 0).min(axis=1)
        window = scores.argmax(axis=0)
        best = scores.max(axis=0)
        found = {}
        now_ms = int((self._tick or 0) + 1) * settings.tick_ms
        for index in np.flatnonzero(best >= settings.least_nats / 2).tolist():
            fast = int(window[index])
            base = float(before[middle, :, index].min() / max(float(since[middle, 0, 0]), 1.0))
            share = float(recent[fast, :, index].min() / posts[fast, 0, 0])
            excess = recent[[0, -1], :, index].min(axis=1) - base * posts[[0, -1], 0, 0]
            onset_ms = now_ms - int(1000 * self._age_s(*excess.tolist()))
            found[terms[index]] = Rise(float(best[index]), base, share, onset_ms)
        return found, held.min(axis=1)

    def _age_s(self, short: float, long: float) -> float:
        """How long an even excess has lasted, by what is in the shortest and in the longest window: at first
        the same, then the short one fills up.
        """
        if short <= 0 or long <= 0:
            return self.settings.tick_s / 2
        ticks = np.arange(1, len(self._fill) + 1)
        age = float(np.interp(-short / long, -self._fill, ticks))
        return (age - 0.5) * self.settings.tick_s

    def _posts_per_s(self) -> float:
        """The stream's rate over the middle window."""
        middle = len(self.settings.windows_s) // 2
        ticks = self.settings.windows_s[middle] / self.settings.tick_s
        weight = float(1 / (1 - 0.5 ** (1 / ticks)))
        return float(self._sketch.totals()[middle]) / (weight * self.settings.tick_s)

    def state(self) -> list[Any]:
        """What `restore` takes; values that msgpack knows."""
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


def worth(settings: TrendSettings) -> Doubles:
    """Per window, how many plain counts a decayed one is worth: it varies less than a plain one of its mean
    (Kish 1965)."""
    return np.array([1 + 0.5 ** (settings.tick_s / each) for each in settings.windows_s])
