"""The page of a comparison: differences, their intervals, and both distributions in one chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from forebay.apps.page import Child, Html, element, page, section, svg
from forebay.bench.compare import BOOTSTRAP, WELCH, Comparison, Difference, LoadComparison, Run
from forebay.bench.report import charts
from forebay.bench.report.charts import (
    MILLISECONDS,
    NUMBER,
    SHARE,
    Line,
    Unit,
    chart,
    figure,
    key,
    scrolled,
    shown,
    table,
    time_unit,
)
from forebay.bench.report.curves import cumulative, response_and_service, tokens_and_gaps
from forebay.bench.report.document import MeasuredRun
from forebay.bench.report.html import STYLE
from forebay.bench.statistics import percentile
from forebay.bench.stream.compare import all_latencies
from forebay.bench.stream.document import MeasuredStream
from forebay.counted import counted

HEADER = ("", "A", "B", "B − A", "95 % interval", "")
REQUEST_TIMES = "Times are response times: from when a request was due."
MOST_LOADS = 20
MOST_CHANGES = 100
WORDS = {True: "better", False: "worse"}


Curves = Callable[[LoadComparison[Run]], Iterator[Html]]
"""Draws the distributions of both under one load."""


def comparison_page(
    found: Comparison[Run], before: str, after: str, curves: Curves[Run], times: str = REQUEST_TIMES
) -> str:
    """The whole page. `before`, `after`: names of the two; `times`: from when times count."""
    lead = f"A is {before}, B is {after}"
    body: list[Child] = [_obstacles(found.obstacles)]
    for load in found.loads[:MOST_LOADS]:
        body.append(section(f"At {load.name}", *_load(load, curves)))
    if len(found.loads) > MOST_LOADS:
        body.append(element("p", f"The first {MOST_LOADS} of {len(found.loads)} loads.", class_="soft"))
    body.append(_changes(found.changes))
    body.append(_reading(found, times))
    return page("Comparison of two benchmarks", lead, *body, style=STYLE)


def difference_row(one: Difference) -> tuple[str, ...]:
    """A row of `HEADER`: B against A, in per cent of A."""
    unit = unit_of(one)
    change, interval = "–", "–"
    if one.relative is not None:
        change = _percent(one.relative)
        if one.low is not None and one.high is not None:
            interval = f"{_percent(one.low / abs(one.before))} to {_percent(one.high / abs(one.before))}"
    return one.name, shown(one.before, unit), shown(one.after, unit), change, interval, said(one)


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) < 10 else f"{share:+,.0%}"


def said(one: Difference) -> str:
    if one.better is not None:
        return WORDS[one.better]
    return "" if one.beyond_noise is None else "within noise"


def unit_of(one: Difference) -> Unit:
    if one.unit == "s":
        return MILLISECONDS
    return SHARE if one.unit == "share" else NUMBER


def _obstacles(obstacles: Sequence[str]) -> Html | None:
    if not obstacles:
        return None
    listed = element("ul", *(element("li", reason) for reason in obstacles))
    return element(
        "div", element("b", "✕ Not comparable, compared all the same"), listed, class_="verdict invalid"
    )


def _load(load: LoadComparison[Run], curves: Curves[Run]) -> Iterator[Html]:
    runs = f"{counted(len(load.before), 'run')} of A, {counted(len(load.after), 'run')} of B"
    yield element("p", runs, class_="soft")
    yield table(f"Differences at {load.name}", HEADER, (difference_row(one) for one in load.differences))
    drawings = [_intervals(load.differences), *curves(load)]
    yield element("div", *drawings, class_="charts")


def _intervals(differences: Sequence[Difference]) -> Html | None:
    """Each difference as a share of A, with its interval; one that crosses the middle is within noise."""
    told = [
        (one, one.relative, one.low / abs(one.before), one.high / abs(one.before))
        for one in differences
        if one.relative is not None and one.low is not None and one.high is not None
    ]
    if not told:
        return None
    most = max(max(abs(low), abs(high)) for _, _, low, high in told) * 100
    left, row = 186.0, 24.0
    bottom = charts.TOP + row * len(told)
    axis = charts.Axis(-most, most, left, charts.WIDTH - charts.RIGHT)
    drawn: list[Html] = []
    for number, (one, relative, low, high) in enumerate(told):
        y = round(charts.TOP + (number + 0.5) * row, 1)
        colour = {True: "var(--c)", False: "var(--b)", None: "var(--soft)"}[one.better]
        ends = {"x1": round(axis.at(low * 100), 1), "x2": round(axis.at(high * 100), 1)}
        drawn += [
            element("text", one.name, x=left - 10, y=y + 4, text_anchor="end"),
            element("line", **ends, y1=y, y2=y, stroke=colour, stroke_width=4, stroke_linecap="round"),
            element("circle", cx=round(axis.at(relative * 100), 1), cy=y, r=4, stroke=colour, class_="mark"),
        ]
    middle = round(axis.at(0.0), 1)
    drawing = svg(
        charts.WIDTH,
        bottom + charts.BOTTOM,
        element("line", x1=middle, x2=middle, y1=charts.TOP, y2=bottom, class_="axis"),
        *drawn,
        *charts.below(axis, bottom, "difference of B from A, % of A"),
        label="Differences with their intervals: " + "; ".join(f"{o.name} {r:+.1%}" for o, r, _, _ in told),
    )
    keys = [key("better", "c"), key("worse", "b"), key("within noise", "s")]
    return figure("Differences", drawing, keys=keys)


def request_curves(load: LoadComparison[MeasuredRun]) -> Iterator[Html]:
    for title, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2EL", "e2el")):
        yield from both_curves(title, "requests", _values(load.before, name), _values(load.after, name))


def event_curves(load: LoadComparison[MeasuredStream]) -> Iterator[Html]:
    nouns = f"{load.before[0].run.noun}s"
    for title, before, after in all_latencies(load):
        yield from both_curves(title, nouns, before, after)


def both_curves(title: str, nouns: str, before: Sequence[float], after: Sequence[float]) -> Iterator[Html]:
    """The distributions of a time, in seconds, of A and B in one chart; empty if one has none."""
    both = sorted(before), sorted(after)
    if not all(both):
        return
    unit = time_unit(max(percentile(both[0], 50), *(values[-1] / 20 for values in both)))
    medians = [shown(percentile(values, 50), unit) for values in both]
    drawing = chart(
        [Line("A", cumulative(both[0]), "s", dashed=True), Line("B", cumulative(both[1]), "a")],
        label=f"Share of {nouns} by {title}: median {medians[0]} of A, {medians[1]} of B",
        x_name=title,
        x_unit=unit,
        y_unit=SHARE,
        log_x=True,
        y_high=1.0,
    )
    keys = [key(f"A, median {medians[0]}", "s", dashed=True), key(f"B, median {medians[1]}", "a")]
    yield figure(title, drawing, keys=keys)


def _values(runs: Sequence[MeasuredRun], name: str) -> list[float]:
    found = []
    for one in runs:
        found += tokens_and_gaps(one.run)[0] if name == "tpot" else response_and_service(one.run, name)[0]
    return [value for value in found if math.isfinite(value)]


def _changes(changes: Sequence[tuple[str, str, str]]) -> Html | None:
    if not changes:
        return None
    head = element("tr", *(element("th", name, scope="col", class_="words") for name in ("", "A", "B")))
    rows = [
        element("tr", element("th", name, scope="row"), element("td", old), element("td", new))
        for name, old, new in changes[:MOST_CHANGES]
    ]
    listed = element("table", element("thead", head), element("tbody", *rows), class_="settings")
    return section("Other differences", scrolled("Other differences", listed))


def _reading(found: Comparison[Run], times: str) -> Html:
    methods = {one.method for load in found.loads for one in load.differences}
    lines = [
        "Differences and intervals are in per cent of A.",
        times,
        "An interval that leaves out 0 is a difference beyond noise, at 95 %: of twenty figures that do not "
        "differ, one is expected to look as if it did.",
    ]
    if WELCH in methods:
        lines.append("Intervals over repeats are Welch's, for means with unequal variances (1947).")
    if BOOTSTRAP in methods:
        lines.append(
            "Intervals over the requests of one run each come from a circular block bootstrap (Politis and "
            "Romano, 1992). They do not cover differences between runs; repeats of both do."
        )
    return section("How to read this", element("ul", *(element("li", line) for line in lines)))
