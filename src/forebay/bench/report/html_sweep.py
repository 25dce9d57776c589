"""Loads side by side on a page: throughput and latency with the knee, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from forebay.apps.page import Html, element, joined, section
from forebay.bench.report.charts import NUMBER, Line, Note, chart, figure, key, table, time_unit
from forebay.bench.report.curves import knee
from forebay.bench.report.document import MeasuredRun
from forebay.bench.report.loads import concurrency, flattened, kind, load_of, loads, rate_per_s, target_of
from forebay.bench.report.loads_table import LATENCIES, PLUS_MINUS, Loads, has_repeats, loads_table

MOST_ROWS = 400
MOST_SERIES = 4
"""Curves of a sweep that are drawn: one per target and workload."""
MOST_LEFT_OUT = 8


def sweep(runs: Sequence[MeasuredRun]) -> Html:
    named = loads(runs)
    believed, left_out = _believed(named)
    series = _series(believed)
    drawings = [
        drawing
        for target, own in list(series.items())[:MOST_SERIES]
        for name, words in LATENCIES
        if (drawing := _throughput_latency(own, name, f"{words}, {target}" if len(series) > 1 else words))
        is not None
    ]
    curves = element("div", *drawings, class_="charts") if drawings else None
    return section("Loads", curves, _left_out(left_out), _loads_table(named))


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


def _left_out(names: Sequence[str]) -> Html | None:
    if not names:
        return None
    more = f" and {len(names) - MOST_LEFT_OUT} more" if len(names) > MOST_LEFT_OUT else ""
    listed = ", ".join(names[:MOST_LEFT_OUT])
    return element("p", f"Not in the curves, because INVALID: {listed}{more}.", class_="soft")


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


def _throughput_latency(named: Loads, name: str, words: str) -> Html | None:
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
    drawn = table("Loads", *loads_table(named))
    return joined([drawn, element("p", PLUS_MINUS, class_="soft") if has_repeats(named) else None])
