"""Viral trends: terms whose rate rises beyond what their own past and the stream's total explain.

Per tick every term that came is tested: has its share of the stream risen, over the last quarter of a minute,
over a minute, over four, against the hours before (`rates.rise`)? Counts are decayed counts of a sketch, so
memory does not grow with the terms. Terms that rise in the same posts are one trend. A trend has an onset, a
peak and an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import msgpack
import numpy as np

from forebay.detect.rates import rise
from forebay.detect.sketch import RateSketch
from forebay.detect.terms import part_of, same_term, shortest_name
from forebay.detect.ticks import Counts, Entry, joined
from forebay.detect.words import keys_of
from forebay.errors import MalformedRecord

VERSION = 1
TRACE_TICKS = 32
"""Ticks for which is kept with which posts a warm term came."""
COOL_TICKS = 120


@dataclass(frozen=True, slots=True)
class TrendSettings:
    """How trends are found."""

    tick_s: float = 5.0
    windows_s: tuple[float, ...] = (15.0, 60.0, 240.0)
    """Half-lives of what counts as now."""
    history_s: float = 7200.0
    """Half-life of what counts as the past."""
    least_nats: float = 15.0
    """Least evidence: below one false trend per million independent tests."""
    least_ratio: float = 2.5
    """Least ratio of a term's share now to that of its past."""
    least_posts: float = 5.0
    """Least decayed number of posts in a window."""
    together: float = 0.3
    """Least share of common posts (Jaccard) at which two rising terms are one trend."""
    end_share: float = 0.2
    """A trend ends when its excess has fallen below this share of the peak's."""
    end_s: float = 60.0
    """… and stayed there for so long."""
    width_bits: int = 18
    max_warm: int = 4096
    max_trends: int = 512
    max_terms: int = 24
    """Terms that are kept of one trend."""


TrendKind = Literal["born", "peaked", "ended", "merged"]


@dataclass(frozen=True, slots=True)
class TrendEvent:
    """What happened to a trend.

    `onset_ms` is an estimate, `time_ms` the end of the tick in which this was seen, `rate_per_s` the smoothed
    rate of posts then, at `peaked` and `ended` that of the peak. `posts` are numbers of posts with it, as its
    counter numbered them. `merged`: it goes on as trend `into`.
    """

    kind: TrendKind
    trend: int
    name: str
    terms: tuple[str, ...]
    time_ms: int
    onset_ms: int
    peak_ms: int
    rate_per_s: float
    base_per_s: float
    score: float
    into: int | None = None
    posts: tuple[int, ...] = ()


@dataclass(slots=True)
class _Trend:
    """A live trend; rates are posts per second of its most frequent term."""

    terms: list[str]
    onset_ms: int
    born_tick: int
    base: float
    """The share of posts that its term had before."""
    score: float
    rate: float
    peak: float
    peak_ms: int
    peaked: bool = False
    quiet_ticks: int = 0


@dataclass(frozen=True, slots=True)
class _Rise:
    """A term that rises: the evidence, its shares of the posts before and now, since when."""

    score: float
    base: float
    share: float
    onset_ms: int


class TrendFinder:
    """Trends of the terms of one shard. Not thread-safe. Takes ticks in order, each in any number of parts.

    Memory is bounded: the sketch, and as many warm terms and live trends as the settings say; where more rise
    at once, those with the least evidence wait.
    """

    def __init__(self, settings: TrendSettings | None = None) -> None:
        self.settings = settings or TrendSettings()
        ticks = [seconds / self.settings.tick_s for seconds in self.settings.windows_s]
        history = self.settings.history_s / self.settings.tick_s
        self._sketch = RateSketch([*ticks, history], width_bits=self.settings.width_bits)
        # A decayed count varies less than a plain one of its mean: it is worth that many plain ones (Kish
        # 1965).
        self._worth = np.array([1 + 0.5 ** (1 / each) for each in ticks])
        # Per age in ticks of an even excess: what the shortest window holds of it, over what the longest
        # does.
        ages = np.arange(1, int(4 * ticks[-1]) + 1)
        kept_short, kept_long = 0.5 ** (1 / ticks[0]), 0.5 ** (1 / ticks[-1])
        self._fill = (1 - kept_short**ages) / (1 - kept_short) * (1 - kept_long) / (1 - kept_long**ages)
        self._traces: dict[str, deque[tuple[int, int, int, int]]] = {}
        """Per warm term its ticks: number, posts, first and last post."""
        self._trends: dict[int, _Trend] = {}
        self._of_term: dict[str, tuple[int, int]] = {}
        """Per rising term its trend, and the tick in which it was last seen to rise: while that is so, also
        after its trend has ended, it makes no new one.
        """
        self._next = 0
        self._tick: int | None = None
        self._passed = 1
        self._closed = False
        self._present: dict[str, Entry] = {}
        """What came in the present tick of the terms that come often, are warm, or are in a trend."""
        self.late = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the sketch; the rest is bounded by the settings."""
        return self._sketch.nbytes

    def add(self, counts: Counts) -> list[TrendEvent]:
        """Count what came in a tick, or a part of it. Counts of a later tick close the one before, and give
        what happened in it; those of a closed tick are dropped, and `late` says how many posts those were.
        """
        events: list[TrendEvent] = []
        if self._tick is not None and (
            counts.tick < self._tick or (counts.tick == self._tick and self._closed)
        ):
            self.late += counts.posts
            return events
        if self._tick is None or counts.tick > self._tick:
            events = self.close()
            self._passed = 1 if self._tick is None else counts.tick - self._tick
            self._tick, self._closed = counts.tick, False
            self._sketch.advance(counts.tick)
        terms = list(counts.terms)
        places = self._sketch.places(keys_of(terms))
        numbers = np.fromiter((entry[0] for entry in counts.terms.values()), np.float64, len(terms))
        self._sketch.add(places, numbers, counts.posts)
        often = self._sketch.read(places)[:-1].min(axis=1).max(axis=0) >= self.settings.least_posts
        for term, is_often in zip(terms, often.tolist(), strict=True):
            if is_often or term in self._of_term or term in self._traces:
                known, new = self._present.get(term), counts.terms[term]
                self._present[term] = new if known is None else joined(known, new)
        return events

    def close(self) -> list[TrendEvent]:
        """Nothing more comes in the present tick: what happened in it."""
        events: list[TrendEvent] = []
        if self._tick is None or self._closed:
            return events
        risen = self._risen()
        self._cool(risen)
        self._trace(risen)
        for term, found in sorted(risen.items(), key=lambda each: -each[1].score):
            if found.score >= self.settings.least_nats and term not in self._of_term:
                self._join(term, found, events)
        self._follow(events)
        self._present.clear()
        self._closed = True
        return events

    def _risen(self) -> dict[str, _Rise]:
        """The terms of the tick that rise, with half the evidence that makes a trend or more."""
        settings = self.settings
        middle = len(settings.windows_s) // 2
        terms = list(self._present)
        if not terms:
            return {}
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
        now_ms = self._now_ms()
        for index in np.flatnonzero(best >= settings.least_nats / 2).tolist():
            fast = int(window[index])
            base = float(before[middle, :, index].min() / max(float(since[middle, 0, 0]), 1.0))
            share = float(recent[fast, :, index].min() / posts[fast, 0, 0])
            excess = recent[[0, -1], :, index].min(axis=1) - base * posts[[0, -1], 0, 0]
            ago_s = self._age_s(*excess.tolist())
            onset_ms = now_ms - int(1000 * ago_s)
            found[terms[index]] = _Rise(float(best[index]), base, share, onset_ms)
        return found

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

    def _now_ms(self) -> int:
        """The end of the present tick."""
        return 0 if self._tick is None else int((self._tick + 1) * self.settings.tick_s * 1000)

    def _cool(self, risen: dict[str, _Rise]) -> None:
        """Terms that rise no more, or were not seen for long, may make a new trend again."""
        tick = self._tick or 0
        for term, (number, seen) in list(self._of_term.items()):
            if term in risen:
                self._of_term[term] = number, tick
            elif number in self._trends and term in self._trends[number].terms:
                continue
            elif term in self._present or tick - seen > COOL_TICKS:
                del self._of_term[term]

    def _trace(self, risen: dict[str, _Rise]) -> None:
        """Note the posts of the terms that are warm or in a trend; forget terms that have cooled."""
        tick = self._tick or 0
        for term in risen:
            if term not in self._traces and len(self._traces) < self.settings.max_warm:
                self._traces[term] = deque(maxlen=TRACE_TICKS)
        cold = []
        for term, seen in self._traces.items():
            entry = self._present.get(term)
            if entry is not None:
                seen.append((tick, *entry))
            elif term not in self._of_term and (not seen or seen[-1][0] < tick - TRACE_TICKS):
                cold.append(term)
        for term in cold:
            del self._traces[term]

    def _join(self, term: str, found: _Rise, events: list[TrendEvent]) -> None:
        """The term joins the trend it comes with, or is a new one."""
        tick = self._tick or 0
        if len(self._of_term) >= 4 * self.settings.max_warm:
            return
        for word in term.split(" ") if " " in term else ():
            if word in self._of_term and self._explained(term, word):
                self._of_term[term] = self._of_term[word][0], tick
                return
        for number, trend in self._trends.items():
            if any(self._alike(term, member) for member in trend.terms):
                self._of_term[term] = number, tick
                if len(trend.terms) < self.settings.max_terms:
                    trend.terms.append(term)
                return
        if len(self._trends) >= self.settings.max_trends or term not in self._traces:
            return
        number = self._next
        self._next += 1
        rate = found.share * self._posts_per_s()
        self._of_term[term] = number, tick
        self._trends[number] = _Trend(
            [term], found.onset_ms, tick, found.base, found.score, rate, peak=rate, peak_ms=self._now_ms()
        )
        events.append(self._event("born", number))

    def _explained(self, phrase: str, word: str) -> bool:
        """Whether a phrase rises no more than one of its words: tested as a share of the word's posts."""
        both = self._sketch.read(self._sketch.places(keys_of([phrase, word]))).min(axis=1)
        recent, history = both[:-1], np.maximum(both[-1] - both[:-1], 0)
        evidence = rise(recent[:, 0], recent[:, 1], history[:, 0], history[:, 1]) * self._worth
        return bool(evidence.max() < self.settings.least_nats)

    def _alike(self, one: str, other: str) -> bool:
        if same_term(one, other):
            return True
        common = self._jaccard(one, other)
        return common >= (self.settings.together / 2 if part_of(one, other) else self.settings.together)

    def _jaccard(self, one: str, other: str) -> float:
        """The share of posts with one of two terms that have both: how often the first and the last post of a
        tick that has either has both, weighted by the posts."""
        if one not in self._traces or other not in self._traces:
            return 0.0
        mine = {entry[0]: entry[1:] for entry in self._traces[one]}
        theirs = {entry[0]: entry[1:] for entry in self._traces[other]}
        begin = max(min(mine, default=0), min(theirs, default=0))
        both = either = 0.0
        for tick in sorted(mine.keys() | theirs.keys()):
            if tick < begin:
                continue
            a, b = mine.get(tick), theirs.get(tick)
            weight = max(a[0] if a else 0, b[0] if b else 0)
            either += weight
            if a and b:
                both += weight * ((a[1] == b[1]) + (a[2] == b[2])) / 2
        return both / either if either else 0.0

    def _follow(self, events: list[TrendEvent]) -> None:
        """Rates, peaks and ends of the live trends; trends that come together are merged."""
        settings = self.settings
        now_ms, per_s = self._now_ms(), self._posts_per_s()
        keep = 0.5 ** min(self._passed * settings.tick_s / settings.windows_s[0], 1000.0)
        by_post: dict[int, int] = {}
        for number in list(self._trends):
            trend = self._trends[number]
            entries = [self._present[term] for term in trend.terms if term in self._present]
            most = max((entry[0] for entry in entries), default=0)
            if trend.born_tick != self._tick:
                trend.rate = trend.rate * keep + (1 - keep) * most / settings.tick_s
            if trend.rate > trend.peak:
                trend.peak, trend.peak_ms, trend.peaked = trend.rate, now_ms, False
            base = trend.base * per_s
            excess = (trend.rate - base) / max(trend.peak - base, 1e-9)
            if excess < 0.7 and not trend.peaked:
                trend.peaked = True
                events.append(self._event("peaked", number))
            trend.quiet_ticks = trend.quiet_ticks + self._passed if excess < settings.end_share else 0
            if trend.quiet_ticks * settings.tick_s >= settings.end_s:
                events.append(self._event("ended", number))
                del self._trends[number]
                continue
            for entry in entries:
                other = by_post.setdefault(entry[2], number)
                if other != number and other in self._trends and self._one(other, number):
                    self._merge(other, number, events)
                    break

    def _one(self, first: int, second: int) -> bool:
        mine, theirs = self._trends[first].terms[:4], self._trends[second].terms[:4]
        return any(self._alike(one, other) for one in mine for other in theirs)

    def _merge(self, kept: int, gone: int, events: list[TrendEvent]) -> None:
        mine, theirs = self._trends[kept], self._trends[gone]
        events.append(self._event("merged", gone, into=kept))
        for term in theirs.terms:
            self._of_term[term] = kept, self._tick or 0
        mine.terms = [*mine.terms, *theirs.terms][: self.settings.max_terms]
        mine.onset_ms = min(mine.onset_ms, theirs.onset_ms)
        del self._trends[gone]

    def _event(self, kind: TrendKind, number: int, into: int | None = None) -> TrendEvent:
        trend = self._trends[number]
        posts = {entry[3] for term in trend.terms[:4] if term in self._traces
                 for entry in list(self._traces[term])[-4:]}  # fmt: skip
        return TrendEvent(
            kind, number, shortest_name(trend.terms), tuple(trend.terms), self._now_ms(), trend.onset_ms,
            trend.peak_ms, trend.rate if kind == "born" else trend.peak, trend.base * self._posts_per_s(),
            trend.score, into, tuple(sorted(posts)[-6:]),
        )  # fmt: skip

    def finish(self) -> list[TrendEvent]:
        """At a stream's end: what is still live ends now."""
        events = self.close()
        events += [self._event("ended", number) for number in self._trends]
        self._trends.clear()
        return events

    def to_bytes(self) -> bytes:
        """The whole state. `from_bytes` gives a finder that goes on exactly as this one would."""
        names = [f.name for f in fields(_Trend)]
        packed: bytes = msgpack.packb(
            {
                "version": VERSION,
                "settings": [getattr(self.settings, f.name) for f in fields(TrendSettings)],
                "sketch": self._sketch.state(),
                "traces": [[term, list(seen)] for term, seen in self._traces.items()],
                "trends": [[n, *(getattr(t, name) for name in names)] for n, t in self._trends.items()],
                "of_term": list(self._of_term.items()),
                "next": self._next,
                "tick": [self._tick, self._passed, self._closed, self.late],
                "present": list(self._present.items()),
            },
            unicode_errors="surrogatepass",
        )
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> TrendFinder:
        """What `to_bytes` gave. Raises `MalformedRecord` for other bytes, or those of another version."""
        document: Any
        try:
            document = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)
            if document["version"] != VERSION:
                raise MalformedRecord(
                    f"trends: the state is of version {document['version']}; expected {VERSION}"
                )
            values: Sequence[Any] = [tuple(v) if isinstance(v, list) else v for v in document["settings"]]
            self = cls(TrendSettings(*values))
            self._sketch = RateSketch.restore(document["sketch"])
            for term, seen in document["traces"]:
                self._traces[term] = deque((tuple(entry) for entry in seen), TRACE_TICKS)
            self._trends = {number: _Trend(*values) for number, *values in document["trends"]}
            self._of_term = {term: (number, seen) for term, (number, seen) in document["of_term"]}
            self._next = document["next"]
            self._tick, self._passed, self._closed, self.late = document["tick"]
            self._present = {term: (count, first, last) for term, (count, first, last) in document["present"]}
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"trends: not a state: {type(error).__name__}: {error}") from None
        return self
