"""Measures trends on streams with planted bursts, against Kleinberg's automaton offline."""

from __future__ import annotations

import datetime
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil

from benchmarks.bursts import BurstPlan, BurstStream, Doubles, PlantedBurst, kleinberg_bursts
from benchmarks.trend_finder import TrendFinder
from benchmarks.workload import quantile
from forebay.apps.trends.stages import MAX_SAMPLES_PER_TICK, TickCounter
from forebay.apps.trends.terms import terms_of
from forebay.apps.trends.values import Counts, TrendEvent, TrendSettings
from forebay.errors import SettingError

GRACE_S = 60.0
"""A trend up to this long after a burst's end still belongs to that burst."""
DISTINCT_TERMS = 10_000_000
BATCH_S = 15
MIN_KLEINBERG_POSTS = 30
MIN_ZSCORE = 6.0
MIN_ZSCORE_POSTS = 5.0
QUIET_BATCHES = 4
"""Batches without an alarm after which the next one is a new sighting."""
DELAY_FACTOR = 5.0
"""The delay is measured on bursts that rise to this multiple of their base rate."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something to find: the words that name it, and when posts are about it."""

    words: frozenset[str]
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Sighting:
    """Something detected as a burst: its terms, when it was reported, and its estimated begin."""

    terms: frozenset[str]
    reported_s: float
    onset_s: float


def measure_trends(
    plan: BurstPlan, settings: TrendSettings | None = None, note: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Precision, recall, delay, speed and memory on one stream."""
    stream = BurstStream(plan)
    settings = settings or TrendSettings()
    note(f"trends: {plan.hours:g} hours of posts")
    posts = list(stream.posts())
    used = time.process_time()
    events = list(find_trends(posts, settings))
    used = time.process_time() - used
    note("trends: Kleinberg's automaton")
    seen = sightings(events)
    offline = kleinberg_sightings(posts, settings.least_nats)
    plain = zscore_sightings(posts)
    oracle = oracle_delays_s(stream, posts, settings)
    note(f"trends: {DISTINCT_TERMS} distinct terms")
    return {
        **hits(stream.bursts, seen),
        "bursts": len(stream.bursts),
        "trends": len(seen),
        "events": len(posts),
        "events_per_s": len(posts) / used,
        **memory(settings, DISTINCT_TERMS),
        "baselines": {
            "kleinberg_offline": {**hits(stream.bursts, offline), "trends": len(offline)},
            "zscore": {**hits(stream.bursts, plain), "trends": len(plain)},
        },
        "oracle_delay_s_p50": quantile(oracle, 0.5) if oracle else None,
    }


def find_trends(
    posts: Iterable[tuple[int, str]], settings: TrendSettings, *, texts: bool = False
) -> Iterator[TrendEvent]:
    """Both stages over posts (ms, text) in order of time."""
    counter = TickCounter(tick_ms=settings.tick_ms, samples=MAX_SAMPLES_PER_TICK if texts else 0)
    finder = TrendFinder(settings)
    closes_ms = None
    for time_ms, text in posts:
        if closes_ms is None or time_ms >= closes_ms:
            for counts in counter.close(time_ms):
                yield from finder.add(counts)
            yield from finder.close()
            closes_ms = (time_ms // counter.tick_ms + 1) * counter.tick_ms
        early = counter.add(terms_of(text), time_ms, text)
        if early is not None:
            yield from finder.add(early)
    for counts in counter.close(2**62):
        yield from finder.add(counts)
    yield from finder.finish()


def sightings(events: Sequence[TrendEvent]) -> list[Sighting]:
    """Trends in the order reported; merged ones count once, and each return counts."""
    into = {event.trend: event.into for event in events if event.into is not None}

    def end(trend: int) -> int:
        while (further := into.get(trend)) is not None:
            trend = further
        return trend

    terms: dict[tuple[int, int], set[str]] = {}
    first_s: dict[tuple[int, int], float] = {}
    onset: dict[tuple[int, int], float] = {}
    for event in events:
        trend = end(event.trend), event.rises
        terms.setdefault(trend, set()).update((*event.terms, event.name))
        if event.kind in ("born", "returned"):
            first_s[trend] = min(first_s.get(trend, np.inf), event.time_ms / 1000)
        onset[trend] = event.onset_ms / 1000
    ordered = sorted(first_s, key=lambda trend: first_s[trend])
    return [Sighting(frozenset(terms[trend]), first_s[trend], onset[trend]) for trend in ordered]


def hits(bursts: Sequence[PlantedBurst], seen: Sequence[Sighting]) -> dict[str, Any]:
    """Precision, recall and delays."""
    spans = [
        Span(
            frozenset(word for t in burst.terms for word in (t.partition("://")[2], *t.split(), t)),
            burst.onset_s,
            burst.end_s,
        )
        for burst in bursts
    ]
    found = matched(spans, seen, early_s=BATCH_S, grace_s=GRACE_S)
    delays = sorted(
        one.reported_s - bursts[index].onset_s
        for index, one in found.items()
        if bursts[index].factor == DELAY_FACTOR
    )
    shapes = sorted({burst.shape for burst in bursts})
    of_shape = {
        shape: sorted(
            one.reported_s - bursts[index].onset_s
            for index, one in found.items()
            if bursts[index].factor == DELAY_FACTOR and bursts[index].shape == shape
        )
        for shape in shapes
    }
    onsets = sorted(abs(one.onset_s - bursts[index].onset_s) for index, one in found.items())
    return {
        "precision": len(found) / len(seen) if seen else 0.0,
        "recall": len(found) / len(bursts),
        "delay_s_p50": quantile(delays, 0.5) if delays else None,
        "delay_s_p50_by_shape": {shape: quantile(d, 0.5) if d else None for shape, d in of_shape.items()},
        "onset_error_s_p50": quantile(onsets, 0.5) if onsets else None,
    }


def oracle_delays_s(
    stream: BurstStream, posts: Sequence[tuple[int, str]], settings: TrendSettings
) -> list[float]:
    """Sorted delays of bursts of `DELAY_FACTOR`, for a finder that is given their onsets, terms and rates.

    It looks after each post, and reports a burst once one of its terms has enough posts and evidence in any
    interval since the onset. No finder that needs the same evidence is much faster.
    """
    delays = []
    for burst in stream.bursts:
        if burst.factor != DELAY_FACTOR:
            continue
        rhythm = float(stream.rate_per_s(burst.onset_s)) / stream.plan.rate_per_s
        main = burst.terms[0]
        own = {term for each in burst.terms for term in terms_of(each)}
        times: dict[str, list[float]] = {}
        first = bisect_left(posts, burst.onset_s * 1000, key=lambda post: post[0])
        for time_ms, text in islice(posts, first, None):
            after_s = time_ms / 1000 - burst.onset_s
            if after_s > burst.end_s - burst.onset_s:
                break
            of_burst = own.intersection(terms_of(text)) if main in text else ()
            for term in of_burst:
                times.setdefault(term, []).append(after_s)
            base_per_s = {main: burst.base_per_s * rhythm}
            if any(_is_evident(times[term], base_per_s.get(term, 0.0), settings) for term in of_burst):
                delays.append(after_s)
                break
    return sorted(delays)


def _is_evident(times_s: list[float], base_per_s: float, settings: TrendSettings) -> bool:
    """Whether an interval that ends with the last of these posts has enough of them."""
    begins = np.array([0.0, *times_s[:-1]])
    number = np.arange(len(times_s), 0, -1)
    usual = np.maximum(base_per_s * (times_s[-1] - begins), 1e-9)
    nats = number * np.log(number / usual) - number + usual
    enough = (number > usual) & (number >= settings.least_posts) & (nats >= settings.least_nats)
    return bool(enough.any())


def matched(
    spans: Sequence[Span], seen: Sequence[Sighting], *, early_s: float, grace_s: float
) -> dict[int, Sighting]:
    found: dict[int, Sighting] = {}
    for one in seen:
        for index, span in enumerate(spans):
            during = span.begin_s - early_s <= one.reported_s <= span.end_s + grace_s
            if index not in found and during and one.terms & span.words:
                found[index] = one
                break
    return found


def kleinberg_sightings(posts: Sequence[tuple[int, str]], least_nats: float) -> list[Sighting]:
    """Bursts of single terms (no phrases), of at least the given evidence, with the whole stream in
    view."""
    often, counts, totals = _batches(posts, MIN_KLEINBERG_POSTS)
    found: list[tuple[int, int, str]] = []
    for start in range(0, len(often), 512):
        part = often[start : start + 512]
        each_term = kleinberg_bursts(counts(part), totals)
        for term, intervals in zip(part, each_term, strict=True):
            found += [(each.first, each.end, term) for each in intervals if each.weight >= least_nats]
    return [Sighting(terms, first * BATCH_S, first * BATCH_S) for first, _, terms in _grouped(found)]


def zscore_sightings(posts: Sequence[tuple[int, str]]) -> list[Sighting]:
    """Terms whose count in a batch exceeds their mean of the last hour by six standard deviations."""
    often, counts, totals = _batches(posts, int(MIN_ZSCORE_POSTS))
    found: list[tuple[int, int, str]] = []
    for start in range(0, len(often), 512):
        part = often[start : start + 512]
        of_part = counts(part)
        sums = np.concatenate([np.zeros((len(part), 1)), of_part.cumsum(axis=1)], axis=1)
        ends = np.arange(len(totals))
        begins = np.maximum(ends - 3600 // BATCH_S, 0)
        mean = (sums[:, ends] - sums[:, begins]) / np.maximum(ends - begins, 1)
        high = (of_part - mean >= MIN_ZSCORE * np.sqrt(np.maximum(mean, 0.1))) & (of_part >= MIN_ZSCORE_POSTS)
        for term, batch in zip(*np.nonzero(high), strict=True):
            found.append((int(batch), int(batch) + QUIET_BATCHES, part[int(term)]))
    ongoing: dict[str, tuple[int, int, str]] = {}
    merged: list[tuple[int, int, str]] = []
    for batch, end, term in sorted(found):
        known, first = ongoing.get(term), batch
        if known is not None and batch <= known[1]:
            merged.remove(known)
            first = known[0]
        ongoing[term] = first, end, term
        merged.append(ongoing[term])
    return [Sighting(terms, (first + 1) * BATCH_S, first * BATCH_S) for first, _, terms in _grouped(merged)]


def _batches(
    posts: Sequence[tuple[int, str]], least_posts: int
) -> tuple[list[str], Callable[[list[str]], Doubles], Doubles]:
    batches = posts[-1][0] // (BATCH_S * 1000) + 1
    totals = np.zeros(batches)
    at: dict[str, list[int]] = {}
    for time_ms, text in posts:
        batch = time_ms // (BATCH_S * 1000)
        totals[batch] += 1
        for term in terms_of(text):
            if " " not in term:
                at.setdefault(term, []).append(batch)

    def counts(terms: list[str]) -> Doubles:
        return np.stack([np.bincount(at[term], minlength=batches) for term in terms]).astype(np.float64)

    return [term for term, found in at.items() if len(found) >= least_posts], counts, totals


def _grouped(found: list[tuple[int, int, str]]) -> list[tuple[int, int, frozenset[str]]]:
    groups: list[tuple[int, int, frozenset[str]]] = []
    for first, end, term in sorted(found):
        for index, (a, b, terms) in enumerate(groups):
            common = min(b, end) - max(a, first)
            alike = any(term.lstrip("#").startswith(other.lstrip("#")[:6]) for other in terms)
            if common > 0.5 * (max(b, end) - min(a, first)) and (alike or abs(a - first) <= 2):
                groups[index] = min(a, first), max(b, end), terms | {term}
                break
        else:
            groups.append((first, end, frozenset([term])))
    return groups


def memory(settings: TrendSettings, distinct: int) -> dict[str, Any]:
    """Memory of a finder after `distinct` terms, in MiB: the larger of its serialised state and the growth of
    the process."""
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    finder = TrendFinder(settings)
    per_tick = 25_000
    for tick in range(distinct // per_tick):
        terms = {f"term {tick * per_tick + number}": (1, number, number) for number in range(per_tick)}
        terms["hot"] = (100 + 50 * (tick % 7), 0, 0)
        finder.add(Counts(tick, per_tick, terms))
    grown = process.memory_info().rss - before
    return {"state_mib": max(grown, len(finder.to_bytes())) / 2**20, "distinct_terms": distinct}


EVENTS_FILE = Path(__file__).with_name("fight.jsonl")
DAY = "2017-08-27T"
SETTINGS = TrendSettings()
EARLY_S = 15.0


@dataclass(frozen=True, slots=True)
class FightEvent:
    what: str
    span: Span


def fight_events() -> list[FightEvent]:
    found = []
    for line in EVENTS_FILE.read_bytes().splitlines():
        row = orjson.loads(line)
        begin, end = (_time_ms(f"{DAY}{row[name]}Z") / 1000 for name in ("from", "until"))
        found.append(FightEvent(row["what"], Span(frozenset(row["terms"]), begin, end)))
    return found


def read_posts(path: Path) -> list[tuple[int, str]]:
    """The posts (ms, text) of JSON lines with `created_at` and `text`, in order of time."""
    try:
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        posts = [(_time_ms(row["created_at"]), row["text"] or "") for row in rows]
    except (OSError, orjson.JSONDecodeError, KeyError, ValueError) as error:
        raise SettingError(
            f"{path} cannot be read: expected JSON lines with created_at and text: {error}"
        ) from None
    return sorted(posts, key=lambda post: post[0])


def measure_fight(path: Path) -> dict[str, Any]:
    """Precision, recall and delay of Forebay's trends and of two baselines, and the trends themselves."""
    posts = read_posts(path)
    events = fight_events()
    trends = list(find_trends(posts, SETTINGS, texts=True))
    least_nats = 15.0
    start_s = posts[0][0] / 1000
    moved = [(time_ms - posts[0][0], text) for time_ms, text in posts]
    return {
        "events": len(events),
        **scored(events, sightings(trends)),
        "baselines": {
            "kleinberg_offline": scored(events, _later(kleinberg_sightings(moved, least_nats), start_s)),
            "zscore": scored(events, _later(zscore_sightings(moved), start_s)),
        },
        "trends": [_row(event) for event in trends if event.kind == "ended"],
    }


def scored(events: Sequence[FightEvent], seen: Sequence[Sighting]) -> dict[str, Any]:
    """`missed` names the events without a trend; `wrong` lists the trends without an event, or with one
    that another trend found first."""
    found = matched([event.span for event in events], seen, early_s=EARLY_S, grace_s=0.0)
    delays = sorted(one.reported_s - events[index].span.begin_s for index, one in found.items())
    right = {id(one) for one in found.values()}
    return {
        "precision": len(found) / len(seen) if seen else 0.0,
        "recall": len(found) / len(events),
        "delay_s_p50": quantile(delays, 0.5) if delays else None,
        "seen": len(seen),
        "missed": [event.what for index, event in enumerate(events) if index not in found],
        "wrong": [sorted(one.terms)[:6] for one in seen if id(one) not in right],
    }


def _later(seen: Sequence[Sighting], by_s: float) -> list[Sighting]:
    return [Sighting(one.terms, one.reported_s + by_s, one.onset_s + by_s) for one in seen]


def _row(event: Any) -> dict[str, Any]:
    return {
        "name": event.name,
        "terms": event.terms[:6],
        "onset": _clock(event.onset_ms),
        "peak": _clock(event.peak_ms),
        "end": _clock(event.time_ms),
        "peak_per_s": round(event.rate_per_s, 2),
        "score": round(event.score, 1),
    }


def _time_ms(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _clock(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.timezone.utc).strftime("%H:%M:%S")
