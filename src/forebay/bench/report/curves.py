"""The numbers behind a report's charts: distributions, values over time, the knee of a sweep."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forebay.bench.metrics import output_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.statistics import present, suffices

CURVE_POINTS = 200
MIN_BINS, MAX_BINS = 10, 120
REQUESTS_PER_BIN = 8
MAX_ROWS = 120
ROWS_AROUND = 80
MAX_DOTS = 1500
KNEE_LEAST = 0.1
"""Least distance of a knee from the straight line, as a share of the chart's height."""

Points = list[tuple[float, float]]


def cumulative(values: Sequence[float]) -> Points:
    """(value, share of samples at most as large), sorted."""
    ordered = sorted(values)
    if not ordered:
        return []
    count = len(ordered)
    # All of few samples; of many, evenly spread ones with both ends.
    places = (
        range(count)
        if count <= CURVE_POINTS
        else [round(i * (count - 1) / (CURVE_POINTS - 1)) for i in range(CURVE_POINTS)]
    )
    return [(ordered[0], 0.0), *((ordered[place], (place + 1) / count) for place in places)]


def response_and_service(run: LoadRun, name: str) -> tuple[list[float], list[float]]:
    figures = [each for each in map(request_figures, run.records) if each is not None]
    response = [getattr(each, f"{name}_s") for each in figures]
    service = [getattr(each, f"service_{name}_s") for each in figures]
    return present(response), present(service)


def tokens_and_gaps(run: LoadRun) -> tuple[list[float], list[float], list[float]]:
    """TPOT of each request; all gaps between tokens, and between chunks."""
    figures = [each for each in map(request_figures, run.records) if each is not None]
    return (
        present(each.tpot_s for each in figures),
        [gap for each in figures for gap in each.token_gaps_s],
        [gap for each in figures for gap in each.chunk_gaps_s],
    )


@dataclass(frozen=True, slots=True)
class Courses:
    """A run over time, in bins: (start of the bin, value), the last repeated at the end. `in_flight`: the
    bin's mean."""

    due_per_s: Points
    answered_per_s: Points
    tokens_per_s: Points
    in_flight: Points


def courses(run: LoadRun) -> Courses | None:
    if run.duration_s <= 0 or not run.records:
        return None
    bins = min(max(len(run.records) // REQUESTS_PER_BIN, MIN_BINS), MAX_BINS)
    width_s = run.duration_s / bins
    due, answered, tokens, busy_s = ([0.0] * bins for _ in range(4))

    def place(at_s: float) -> int:
        return min(max(int(at_s / width_s), 0), bins - 1)

    for record in run.records:
        due[place(record.due_s)] += 1
        if record.answered:
            answered[place(record.ended_s)] += 1
        _count_tokens(record, tokens, place)
        if record.sent_s is not None:
            for one in range(place(record.sent_s), place(record.ended_s) + 1):
                shared = min(record.ended_s, (one + 1) * width_s) - max(record.sent_s, one * width_s)
                busy_s[one] += max(shared, 0.0)

    def course(totals: Sequence[float]) -> Points:
        values = [total / width_s for total in totals]
        return [(i * width_s, value) for i, value in enumerate((*values, values[-1]))]

    return Courses(course(due), course(answered), course(tokens), course(busy_s))


def _count_tokens(record: RequestRecord, tokens: list[float], place: object) -> None:
    assert callable(place)
    known = all(chunk.tokens is not None for chunk in record.chunks)
    each = (output_tokens(record) or len(record.chunks)) / max(len(record.chunks), 1)
    for chunk in record.chunks:
        tokens[place(chunk.at_s)] += (chunk.tokens or 0) if known else each


def signals(run: LoadRun) -> dict[str, Points]:
    names = list(dict.fromkeys(name for sample in run.samples for name in sample.values))
    found = {}
    for name in names:
        observed = [(sample.at_s, sample.values.get(name, math.nan)) for sample in run.samples]
        found[name] = thinned(
            [(at_s, value) for at_s, value in observed if math.isfinite(value)], 2 * MAX_BINS
        )
    return found


def first_tokens(run: LoadRun) -> Points:
    found = [(record.due_s, figures.ttft_s) for record in run.records if (figures := request_figures(record))]
    return thinned([(due_s, ttft_s) for due_s, ttft_s in found if ttft_s is not None], MAX_DOTS)


def waterfall(run: LoadRun) -> list[RequestRecord]:
    """Requests by due time: all if they are few, else those due around the slowest one."""
    ordered = sorted(run.records, key=lambda record: (record.due_s, record.index))
    if len(ordered) <= MAX_ROWS:
        return ordered
    slowest = max(range(len(ordered)), key=lambda place: ordered[place].ended_s - ordered[place].due_s)
    first = min(max(slowest - ROWS_AROUND // 2, 0), len(ordered) - ROWS_AROUND)
    return ordered[first : first + ROWS_AROUND]


def thinned(points: Points, most: int) -> Points:
    return points[:: -(-len(points) // most) or 1]


def knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Index of the point after which more of x costs much of y, or None.

    The point farthest below the straight line between the ends, both axes scaled to 0..1 (Satopää et al.
    2011, "Kneedle", without its smoothing).
    """
    if len(points) < 4:
        return None
    (first_x, first_y), (last_x, last_y) = min(points), max(points)
    if last_x <= first_x or last_y <= first_y:
        return None
    below = [(x - first_x) / (last_x - first_x) - (y - first_y) / (last_y - first_y) for x, y in points]
    place = max(range(len(points)), key=below.__getitem__)
    return place if below[place] >= KNEE_LEAST else None


def share_within(values: Sequence[float], bound: float) -> float:
    return bisect_right(values, bound) / len(values) if values else 0.0


def percentages(count: int) -> Iterator[float]:
    yield from (percent for percent in (50.0, 90.0, 99.0) if suffices(count, percent))
