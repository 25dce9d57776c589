"""Loads side by side on a page: throughput and latency with the knee, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from forebay.bench.report.curves import knee
from forebay.bench.report.document import MeasuredRun
from forebay.bench.report.figures_table import LATENCIES, PLUS_MINUS, Loads, has_repeats, loads_table
from forebay.bench.report.loads import concurrency, flattened, kind, load_of, loads, rate_per_s, target_of
from forebay.pages.charts import Figure, Key, Line, Note, Table, line_figure
from forebay.pages.units import NUMBER, time_unit

MAX_ROWS = 400
MAX_SERIES = 4
"""Curves of a sweep that are drawn: one per target and workload."""
MAX_LEFT_OUT = 8


def sweep_view(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    named = loads(runs)
    believed, left_out = _believed(named)
    series = _series(believed)
    curves = [
        drawn
        for target, own in list(series.items())[:MAX_SERIES]
        for name, words in LATENCIES
        if (drawn := _throughput_latency(own, name, f"{words}, {target}" if len(series) > 1 else words))
        is not None
    ]
    more = f" and {len(left_out) - MAX_LEFT_OUT} more" if len(left_out) > MAX_LEFT_OUT else ""
    shown = named[:MAX_ROWS]
    return {
        "curves": curves,
        "left_out": ", ".join(left_out[:MAX_LEFT_OUT]) + more,
        "loads": Table("Loads", *loads_table(shown)),
        "note": PLUS_MINUS if has_repeats(shown) else "",
    }


def _believed(named: Loads) -> tuple[Loads, list[str]]:
    kept, left_out = [], []
    for load, own in named:
        valid = [one for one in own if one.word != "INVALID"]
        if valid:
            kept.append((load, valid))
        if len(valid) < len(own):
            some = f" ({len(own) - len(valid)} of {len(own)} runs)" if valid else ""
            left_out.append(load + some)
    return kept, left_out


def _series(named: Loads) -> dict[str, list[tuple[str, Sequence[MeasuredRun]]]]:
    """Loads by target and kind of workload: those of one curve differ only in rate or concurrency."""
    found: dict[str, tuple[str, list[tuple[str, Sequence[MeasuredRun]]]]] = {}
    for load, own in named:
        asked = own[0].run.asked
        if rate_per_s(asked) is None and concurrency(asked) is None:
            continue
        schedule = kind(asked, "schedule")
        rest = {name: value for name, value in load_of(asked).items() if name not in ("schedule", "requests")}
        key = repr((target_of(asked), schedule, sorted(flattened(rest))))
        name = f"{target_of(asked)} {schedule}".strip()
        found.setdefault(key, (name, []))[1].append((load, own))
    return {
        f"{name} {number}" if number > 1 else name: own
        for number, (name, own) in enumerate(found.values(), 1)
    }


def _throughput_latency(named: Loads, name: str, words: str) -> Figure | None:
    points = []
    for load, own in named:
        found = [one.figures.distributions[name] for one in own if name in one.figures.distributions]
        rate = fmean(one.figures.requests_per_s for one in own)
        if found:
            tail = [one.percentiles[90] for one in found if 90 in one.percentiles]
            high = fmean(tail) if len(tail) == len(found) else None
            points.append((rate, fmean(one.percentiles[50] for one in found), high, load))
    if len(points) < 2:
        return None
    points.sort(key=lambda one: one[0])
    unit = time_unit(max(median for _, median, _, _ in points))
    medians = [(rate, median) for rate, median, _, _ in points]
    lines = [Line("median", medians, "blue", marks=True)]
    tails = [(rate, high) for rate, _, high, _ in points if high is not None]
    if len(tails) == len(points):
        lines.append(Line("p90", tails, "soft", look="dash", marks=True))
    bend = knee(medians)
    at = "" if bend is None else points[bend][3]
    drawn = line_figure(
        f"{words}, {unit.name}, by throughput",
        lines,
        label=f"{words} by throughput" + (f"; its knee is at {at}" if at else ""),
        x_name="requests/s answered",
        x_unit=NUMBER,
        y_unit=unit,
        notes=[] if bend is None else [Note(*medians[bend], "knee", ring=True)],
        room=0.12,
    )
    return replace(drawn, keys=[*drawn.keys, Key(f"knee: {at}", None)]) if at else drawn
