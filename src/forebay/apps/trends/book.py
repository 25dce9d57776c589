"""Third stage: group terms that rise in the same posts into trends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from forebay.apps.samples import MAX_SAMPLES, keep, pick
from forebay.apps.trends.names import is_informative, name_of
from forebay.apps.trends.rising import Surprise
from forebay.apps.trends.terms import forms, part_of, same_term
from forebay.apps.trends.values import Rise, TickReport, TrendEvent, TrendKind, TrendSettings

TRACE_TICKS = 32
COOL_TICKS = 120
SAMPLE_TEXTS = 3
MAIN_TERMS = 4


@dataclass(slots=True)
class _Trend:
    terms: dict[str, int]
    """Terms, with their numbers of posts since the trend began."""
    onset_ms: int
    born_tick: int
    base: float
    score: float
    rate: float
    peak: float
    peak_ms: int
    peaked: bool = False
    quiet_ticks: int = 0
    announced_ms: int = 0
    announced_rate: float = 0.0
    announced_terms: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    name: str = ""
    is_announced: bool = False
    evidence: float = 0.0
    rises: int = 1
    ended_tick: int = 0

    @property
    def main(self) -> list[str]:
        return sorted(self.terms, key=lambda term: (-self.terms[term], term))[:MAIN_TERMS]


class _Near:
    def __init__(self, traces: Mapping[str, Iterable[tuple[int, int, int, int]]]) -> None:
        self._traces = traces
        self._trends: dict[object, set[int]] = {}

    def add(self, term: str, trend: int) -> None:
        for sign in self._signs(term):
            self._trends.setdefault(sign, set()).add(trend)

    def of(self, term: str) -> list[int]:
        return sorted(set().union(*(self._trends.get(sign, ()) for sign in self._signs(term))))

    def _signs(self, term: str) -> Iterator[object]:
        yield from forms(term)
        for _, _, first, last in self._traces.get(term, ()):
            yield 0, first
            yield 1, last


class TrendBook:
    """The trends of one stream. Not thread-safe. Takes one complete report per tick, in order.

    Memory is bounded by the settings: warm terms, live trends, and as many ended ones, which may return.
    """

    def __init__(self, settings: TrendSettings) -> None:
        self.settings = settings
        self._surprises = [Surprise(each / settings.tick_s) for each in settings.windows_s]
        self._traces: dict[str, deque[tuple[int, int, int, int]]] = {}
        """Per warm term, per tick: tick number, post count, first and last post."""
        self._trends: dict[int, _Trend] = {}
        self._ended: dict[int, _Trend] = {}
        """The oldest first."""
        self._of_term: dict[str, tuple[int, int]] = {}
        """Per rising term: its trend and the tick in which it last rose.

        While it keeps rising it starts no new trend, even after its trend has ended.
        """
        self._next = 0
        self._tick: int | None = None
        self._passed = 1
        self._report = TickReport(0, 0.0, {})

    def take(self, report: TickReport) -> list[TrendEvent]:
        self._passed = 1 if self._tick is None else max(1, report.tick - self._tick)
        self._tick, self._report = report.tick, report
        risen = {term: seen.rise for term, seen in report.terms.items() if seen.rise is not None}
        events: list[TrendEvent] = []
        self._cool(risen)
        self._trace(risen)
        new = [term for term, found in risen.items() if found.score >= self.settings.least_nats]
        new = [term for term in new if term not in self._of_term]
        if new:
            near = self._near()
            for term in sorted(new, key=lambda term: (-risen[term].score, term)):
                self._join(term, risen[term], near)
        self._follow(events)
        self._report = TickReport(report.tick, report.posts_per_s, {})
        return events

    def finish(self) -> list[TrendEvent]:
        events = [
            self._event("ended", number) for number, trend in self._trends.items() if trend.is_announced
        ]
        self._trends.clear()
        return events

    def open_now(self) -> int:
        return sum(trend.is_announced for trend in self._trends.values())

    def _now_ms(self) -> int:
        return 0 if self._tick is None else (self._tick + 1) * self.settings.tick_ms

    def _cool(self, risen: dict[str, Rise]) -> None:
        tick = self._tick or 0
        for term, (number, seen) in list(self._of_term.items()):
            if term in risen:
                self._of_term[term] = number, tick
            elif number in self._trends and term in self._trends[number].terms:
                continue
            elif term in self._report.terms or tick - seen > COOL_TICKS:
                del self._of_term[term]

    def _trace(self, risen: dict[str, Rise]) -> None:
        tick = self._tick or 0
        for term in risen:
            if term not in self._traces and len(self._traces) < self.settings.max_warm:
                self._traces[term] = deque(maxlen=TRACE_TICKS)
        cold = []
        for term, ticks in self._traces.items():
            seen = self._report.terms.get(term)
            if seen is not None:
                ticks.append((tick, *seen.entry))
            elif term not in self._of_term and (not ticks or ticks[-1][0] < tick - TRACE_TICKS):
                cold.append(term)
        for term in cold:
            del self._traces[term]

    def _near(self) -> _Near:
        near = _Near(self._traces)
        for number, trend in self._trends.items():
            for term in trend.terms:
                near.add(term, number)
        return near

    def _join(self, term: str, found: Rise, near: _Near) -> None:
        tick = self._tick or 0
        if len(self._of_term) >= 4 * self.settings.max_warm:
            return
        for word in term.split(" ") if " " in term else ():
            if word in self._of_term and self._explained(term, word):
                self._of_term[term] = self._of_term[word][0], tick
                return
        for number in near.of(term):
            trend = self._trends[number]
            if any(self._alike(term, member) for member in trend.terms):
                self._of_term[term] = number, tick
                if len(trend.terms) < self.settings.max_terms:
                    trend.terms[term] = 0
                    near.add(term, number)
                return
        if len(self._trends) >= self.settings.max_trends or term not in self._traces:
            return
        number, self._next = self._next, self._next + 1
        self._of_term[term] = number, tick
        rate, now_ms = found.share * self._report.posts_per_s, self._now_ms()
        self._trends[number] = _Trend(
            {term: 0}, found.onset_ms, tick, found.base, found.score, rate, peak=rate, peak_ms=now_ms
        )
        near.add(term, number)

    def _explained(self, phrase: str, word: str) -> bool:
        """Whether a phrase rises no more than one of its words, tested as a share of the word's posts."""
        terms = self._report.terms
        if phrase not in terms or word not in terms:
            return False
        *windows, history = zip(terms[phrase].counts, terms[word].counts, strict=True)
        evidence = (
            surprise(*now, max(history[0] - now[0], 0.0), max(history[1] - now[1], 0.0))
            for surprise, now in zip(self._surprises, windows, strict=True)
        )
        return all(nats < self.settings.least_nats for nats in evidence)

    def _alike(self, one: str, other: str) -> bool:
        if same_term(one, other):
            return True
        common = self._jaccard(one, other)
        near = part_of(one, other) and is_informative(one) and is_informative(other)
        return common >= (self.settings.together / 2 if near else self.settings.together)

    def _jaccard(self, one: str, other: str) -> float:
        """Estimate the share of posts with either term that contain both.

        Counts how often both terms have the same first and last post in a tick, weighted by posts. 0 if only
        one of these agrees in all ticks, which is often a coincidence.
        """
        if one not in self._traces or other not in self._traces:
            return 0.0
        mine = {entry[0]: entry[1:] for entry in self._traces[one]}
        theirs = {entry[0]: entry[1:] for entry in self._traces[other]}
        begin = max(min(mine, default=0), min(theirs, default=0))
        both = either = 0.0
        agreed = 0
        for tick in sorted(mine.keys() | theirs.keys()):
            if tick < begin:
                continue
            a, b = mine.get(tick), theirs.get(tick)
            weight = max(a[0] if a else 0, b[0] if b else 0)
            either += weight
            if a and b:
                # A post in common by chance means little if one term has many more posts.
                most = min(a[0], b[0]) / max(a[0], b[0])
                same = [number for number, other in zip(a[1:], b[1:], strict=True) if number == other]
                both += weight * min(len(same) / 2, most)
                agreed += len(same)
        return both / either if agreed > 1 else 0.0

    def _follow(self, events: list[TrendEvent]) -> None:
        settings = self.settings
        now_ms, per_s, tick = self._now_ms(), self._report.posts_per_s, self._tick or 0
        keep_share = 0.5 ** min(self._passed * settings.tick_s / settings.windows_s[0], 1000.0)
        by_post: dict[int, int] = {}
        names = self._names()
        for number in list(self._trends):
            trend = self._trends[number]
            seen = []
            trend.evidence = 0.0
            for term in trend.terms:
                if (found := self._report.terms.get(term)) is not None:
                    seen.append(found.entry)
                    trend.terms[term] += found.entry[0]
                    trend.evidence = max(trend.evidence, 0.0 if found.rise is None else found.rise.score)
            trend.score = max(trend.score, trend.evidence)
            most = max((entry[0] for entry in seen), default=0)
            if trend.born_tick != tick:
                trend.rate = trend.rate * keep_share + (1 - keep_share) * most / settings.tick_s
            trend.texts = keep(trend.texts, self._texts_of(trend.main))
            if trend.rate > trend.peak:
                trend.peak, trend.peak_ms, trend.peaked = trend.rate, now_ms, False
            base = trend.base * per_s
            excess = (trend.rate - base) / max(trend.peak - base, 1e-9)
            self._begin(number, trend, names, events)
            if self._trends.get(number) is not trend:
                continue
            if excess < 0.7 and not trend.peaked:
                trend.peaked = True
                if trend.is_announced:
                    events.append(self._event("peaked", number))
            trend.quiet_ticks = trend.quiet_ticks + self._passed if excess < settings.end_share else 0
            if trend.quiet_ticks * settings.tick_s >= settings.end_s:
                self._end(number, trend, events)
                continue
            others = dict.fromkeys(by_post.setdefault(entry[2], number) for entry in seen)
            for other in others:
                if other != number and other in self._trends and self._one(other, number):
                    self._merge(other, number, events)
                    break
            else:
                self._add_event(number, trend, events)

    def _names(self) -> dict[str, int]:
        old = (self._tick or 0) - self.settings.return_s / self.settings.tick_s
        self._ended = {number: trend for number, trend in self._ended.items() if trend.ended_tick >= old}
        live = {number: trend for number, trend in self._trends.items() if trend.is_announced}
        trends = {**self._ended, **live}.items()
        return {name: n for n, trend in trends for name in (*filter(is_informative, trend.main), trend.name)}

    def _begin(self, number: int, trend: _Trend, names: dict[str, int], events: list[TrendEvent]) -> None:
        """Report a trend once it has a name. If another trend has that name, continue that one."""
        if trend.is_announced or (name := name_of(trend.terms, trend.texts)) is None:
            return
        other = names.setdefault(name, number)
        if other != number and other in self._trends:
            self._merge(other, number, events)
            return
        if (before := self._ended.pop(other, None)) is not None:
            self._trends[other] = self._trends.pop(number)
            for term in trend.terms:
                self._of_term[term] = other, self._tick or 0
            number, trend.rises = other, before.rises + 1
        trend.is_announced, trend.announced_rate, trend.announced_terms = True, trend.rate, list(trend.terms)
        trend.announced_ms = self._now_ms()
        events.append(self._event("born" if before is None else "returned", number))

    def _end(self, number: int, trend: _Trend, events: list[TrendEvent]) -> None:
        if trend.is_announced:
            events.append(self._event("ended", number))
        del self._trends[number]
        if not trend.is_announced:
            return
        trend.ended_tick, trend.texts = self._tick or 0, []
        self._ended[number] = trend
        if len(self._ended) > self.settings.max_trends:
            del self._ended[next(iter(self._ended))]

    def _add_event(self, number: int, trend: _Trend, events: list[TrendEvent]) -> None:
        ratio, now_ms = self.settings.changed_ratio, self._now_ms()
        if not trend.is_announced or now_ms - trend.announced_ms < self.settings.changed_s * 1000:
            return
        known = len(set(trend.announced_terms) & set(trend.terms))
        if trend.rate >= ratio * trend.announced_rate or known * ratio < len(trend.terms):
            trend.announced_ms = now_ms
            trend.announced_rate, trend.announced_terms = trend.rate, list(trend.terms)
            events.append(self._event("changed", number))

    def _one(self, first: int, second: int) -> bool:
        mine, theirs = self._trends[first].main, self._trends[second].main
        return any(self._alike(one, other) for one in mine for other in theirs)

    def _merge(self, kept: int, gone: int, events: list[TrendEvent]) -> None:
        if self._trends[gone].is_announced > self._trends[kept].is_announced:
            kept, gone = gone, kept
        mine, theirs = self._trends[kept], self._trends[gone]
        if theirs.is_announced:
            events.append(self._event("merged", gone, into=kept))
        for term, posts in theirs.terms.items():
            self._of_term[term] = kept, self._tick or 0
            if term in mine.terms or len(mine.terms) < self.settings.max_terms:
                mine.terms[term] = max(mine.terms.get(term, 0), posts)
        mine.onset_ms = min(mine.onset_ms, theirs.onset_ms)
        mine.texts = keep(mine.texts, theirs.texts)
        del self._trends[gone]

    def _texts_of(self, terms: Sequence[str]) -> list[str]:
        entries = [self._report.terms[term].entry for term in terms if term in self._report.terms]
        numbers = dict.fromkeys(number for entry in entries for number in entry[1:])
        return [self._report.texts[n] for n in numbers if n in self._report.texts][:MAX_SAMPLES]

    def _event(self, kind: TrendKind, number: int, into: int | None = None) -> TrendEvent:
        trend = self._trends[number]
        main = trend.main
        trend.name = name_of(trend.terms, trend.texts) or trend.name or main[0]
        posts = {entry[3] for term in main if term in self._traces
                 for entry in list(self._traces[term])[-4:]}  # fmt: skip
        rank = 1 + sum(o.is_announced and o.evidence > trend.evidence for o in self._trends.values())
        terms = sorted(trend.terms, key=lambda term: (-trend.terms[term], term))
        return TrendEvent(
            kind, number, trend.name, tuple(terms), self._now_ms(),
            trend.onset_ms, trend.peak_ms,
            trend.peak if kind in ("peaked", "ended", "merged") else trend.rate,
            trend.base * self._report.posts_per_s, trend.score, into, tuple(sorted(posts)[-6:]),
            tuple(pick(trend.texts, SAMPLE_TEXTS)), trend.rate, trend.peak, rank, trend.rises,
        )  # fmt: skip

    def state(self) -> list[Any]:
        names = [f.name for f in fields(_Trend)]
        return [
            [[term, list(seen)] for term, seen in self._traces.items()],
            [[n, *(getattr(t, name) for name in names)] for n, t in self._trends.items()],
            [[n, *(getattr(t, name) for name in names)] for n, t in self._ended.items()],
            list(self._of_term.items()),
            self._next,
            self._tick,
            self._report.posts_per_s,
        ]

    @classmethod
    def restore(cls, settings: TrendSettings, state: Sequence[Any]) -> TrendBook:
        traces, trends, ended, of_term, following, tick, posts_per_s = state
        self = cls(settings)
        for term, seen in traces:
            self._traces[term] = deque((tuple(entry) for entry in seen), TRACE_TICKS)
        self._trends = {number: _Trend(*values) for number, *values in trends}
        self._ended = {number: _Trend(*values) for number, *values in ended}
        self._of_term = {term: (number, seen) for term, (number, seen) in of_term}
        self._next, self._tick = following, tick
        self._report = TickReport(tick or 0, posts_per_s, {})
        return self
