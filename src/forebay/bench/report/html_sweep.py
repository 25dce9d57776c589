"""Loads side by side on a page: throughput and latency, with the knee, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from forebay.apps.page import Html, element, joined, section
from forebay.bench.report.charts import NUMBER, Line, Note, Unit, chart, figure, key, shown, table, time_unit
from forebay.bench.report.curves import (
    knee,
)
from forebay.bench.report.document import MeasuredRun
from forebay.bench.report.loads import concurrency, flattened, kind, load_of, loads, rate_per_s, target_of
from forebay.bench.statistics import mean_interval

MOST_ROWS = 400
MOST_SERIES = 4
"""So many curves of a sweep are drawn: one for each target and workload."""
Loads = Sequence[tuple[str, Sequence[MeasuredRun]]]
LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL"))


def sweep(runs: Sequence[MeasuredRun]) -> Html:
    """All loads side by side: curves of throughput and latency, and a table."""
    named = loads(runs)
    series = _series(named)
    drawings = [
        drawing
        for target, own in list(series.items())[:MOST_SERIES]
        for name, words in LATENCIES
        if (drawing := _throughput_latency(own, name, f"{words}, {target}" if len(series) > 1 else words))
        is not None
    ]
    curves = element("div", *drawings, class_="charts") if drawings else None
    return section("Loads", curves, _loads_table(named))


def _series(named: Loads) -> dict[str, list[tuple[str, Sequence[MeasuredRun]]]]:
    """Loads that differ in their rate or concurrency alone, by target and the kind of the workload: only
    these are points of one curve."""
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


def _throughput_latency(named: Loads, name: str, words: str) -> Html | None:
    """Latency by throughput, a point a load; none of a single load."""
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
    lines = [Line("median", [(rate, median) for rate, median, _, _ in points], "a", marks=True)]
    keys = [key("median", "a")]
    tails = [(rate, high) for rate, _, high, _ in points if high is not None]
    if len(tails) == len(points):
        lines.append(Line("p90", tails, "s", dashed=True, marks=True))
        keys.append(key("p90", "s", dashed=True))
    bend = knee([(rate, median) for rate, median, _, _ in points])
    notes = []
    if bend is not None:
        rate, median, _, load = points[bend]
        notes.append(Note(rate, median, "knee", ring=True))
        keys.append(element("span", f"knee: {load}", class_="key"))
    drawing = chart(
        lines,
        label=f"{words} by throughput" + (f"; its knee is at {points[bend][3]}" if bend is not None else ""),
        x_name="requests/s answered",
        x_unit=NUMBER,
        y_unit=unit,
        notes=notes,
        room=0.12,
    )
    return figure(f"{words}, {unit.name}, by throughput", drawing, keys=keys)


def _loads_table(named: Loads) -> Html:
    named = named[:MOST_ROWS]
    columns: list[tuple[str, list[list[float | None]], Unit]] = [
        (
            "requests/s",
            [[one.figures.requests_per_s for one in own] for _, own in named],
            NUMBER,
        ),
        (
            "output tokens/s",
            [[one.figures.output_tokens_per_s for one in own] for _, own in named],
            NUMBER,
        ),
    ]
    for name, words in LATENCIES:
        medians = [[_median(one, name) for one in own] for _, own in named]
        told = [value for values in medians for value in values if value is not None]
        unit = time_unit(max(told, default=0.0))
        columns.append((f"{words} p50, {unit.name}", medians, Unit("", unit.scale)))
    columns.append(
        ("goodput, %", [[one.figures.goodput for one in own] for _, own in named], Unit("", 100.0))
    )
    rows = [
        (
            load,
            len(own),
            _words(own),
            *(_over_repeats(values[number], unit) for _, values, unit in columns),
            f"{sum(one.figures.failed for one in own):,}",
        )
        for number, (load, own) in enumerate(named)
    ]
    header = ("load", "runs", "", *(name for name, _, _ in columns), "failed")
    repeated = any(len(own) > 1 for _, own in named)
    words = "± is half of the 95 % confidence interval of the mean over repeats (Student's t)."
    return joined([table("Loads", header, rows), element("p", words, class_="soft") if repeated else None])


def _words(own: Sequence[MeasuredRun]) -> str:
    """The verdict on repeats of one load."""
    invalid = sum(one.word == "INVALID" for one in own)
    if invalid:
        return "INVALID" if invalid == len(own) else f"{invalid} INVALID"
    return "VALID" if all(one.word for one in own) else "–"


def _median(measured: MeasuredRun, name: str) -> float | None:
    found = measured.figures.distributions.get(name)
    return None if found is None else found.percentiles.get(50)


def _over_repeats(values: Sequence[float | None], unit: Unit) -> str:
    told = [value for value in values if value is not None]
    if not told or len(told) < len(values):
        return "–"
    interval = mean_interval(told)
    if interval is None:
        return shown(told[0], unit)
    return f"{shown(interval.mean, unit)} ± {shown((interval.high - interval.low) / 2, unit, digits=2)}"
