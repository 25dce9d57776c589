"""The page of a comparison: differences, their intervals, and both distributions in one chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forebay.bench.compare import BOOTSTRAP, WELCH, Comparison, Difference, LoadComparison, Run
from forebay.bench.report.curves import cumulative, response_and_service, tokens_and_gaps
from forebay.bench.report.document import MeasuredRun
from forebay.bench.statistics import percentile
from forebay.bench.stream.compare import all_latencies
from forebay.bench.stream.document import MeasuredStream
from forebay.pages.axes import Axis
from forebay.pages.charts import NAMED_ROW, Figure, Key, Line, Row, Table, rows_drawing, share_figure
from forebay.pages.render import page
from forebay.pages.svg import Colour, circle, rule
from forebay.pages.units import MILLISECONDS, NUMBER, SHARE, Unit, shown, time_unit
from forebay.untrusted_text import counted

HEADER = ("", "A", "B", "B − A", "95 % interval", "")
REQUEST_TIMES = "Times are response times: from when a request was due."
MAX_LOADS = 20
MAX_CHANGES = 100
WORDS = {True: "better", False: "worse"}


Curves = Callable[[LoadComparison[Run]], Iterator[Figure]]


def comparison_page(
    found: Comparison[Run], before: str, after: str, curves: Curves[Run], times: str = REQUEST_TIMES
) -> str:
    return page(
        "compare.html.j2",
        title="Comparison of two benchmarks",
        lead=f"A is {before}, B is {after}",
        obstacles=found.obstacles,
        loads=[_load(load, curves) for load in found.loads[:MAX_LOADS]],
        all_loads=len(found.loads),
        changes=Table("Other differences", ("", "A", "B"), found.changes[:MAX_CHANGES]),
        reading=_reading(found, times),
    )


def difference_row(one: Difference) -> tuple[str, ...]:
    """A row of `HEADER`: B against A, in per cent of A."""
    unit = unit_of(one)
    change, interval = "–", "–"
    if one.relative is not None:
        change = _percent(one.relative)
        if one.low is not None and one.high is not None:
            interval = f"{_percent(one.low / abs(one.before))} to {_percent(one.high / abs(one.before))}"
    return one.name, shown(one.before, unit), shown(one.after, unit), change, interval, finding(one)


def _percent(share: float) -> str:
    return f"{share:+.1%}" if abs(share) < 10 else f"{share:+,.0%}"


def finding(one: Difference) -> str:
    if one.better is not None:
        return WORDS[one.better]
    return "" if one.beyond_noise is None else "within noise"


def unit_of(one: Difference) -> Unit:
    if one.unit == "s":
        return MILLISECONDS
    return SHARE if one.unit == "share" else NUMBER


def _load(load: LoadComparison[Run], curves: Curves[Run]) -> dict[str, Any]:
    intervals = _intervals(load.differences)
    return {
        "name": load.name,
        "runs": f"{counted(len(load.before), 'run')} of A, {counted(len(load.after), 'run')} of B",
        "table": Table(
            f"Differences at {load.name}", HEADER, [difference_row(one) for one in load.differences]
        ),
        "figures": [*([] if intervals is None else [intervals]), *curves(load)],
    }


def _intervals(differences: Sequence[Difference]) -> Figure | None:
    found = [
        (one, one.relative, one.low / abs(one.before), one.high / abs(one.before))
        for one in differences
        if one.relative is not None and one.low is not None and one.high is not None
    ]
    if not found:
        return None
    most = max(max(abs(low), abs(high)) for _, _, low, high in found) * 100
    axis = Axis(-most, most)
    colours: dict[bool | None, Colour] = {True: "green", False: "red", None: "soft"}
    rows = []
    for one, relative, low, high in found:
        colour = colours[one.better]
        interval = rule(axis.at(low * 100), axis.at(high * 100), 0, 0, f"span {colour}")
        rows.append(Row((interval, circle(axis.at(relative * 100), 0, 4, colour)), one.name))
    middle = axis.at(0.0)
    label = "Differences with their intervals: " + "; ".join(f"{o.name} {r:+.1%}" for o, r, _, _ in found)
    zero = rule(middle, middle, 0, NAMED_ROW * len(rows), "axis")
    drawing = rows_drawing(rows, axis, "difference of B from A, % of A", label, behind=[zero])
    keys = [Key("better", "green"), Key("worse", "red"), Key("within noise", "soft")]
    return Figure("Differences", drawing, keys)


def request_curves(load: LoadComparison[MeasuredRun]) -> Iterator[Figure]:
    for title, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2EL", "e2el")):
        yield from both_curves(title, "requests", _values(load.before, name), _values(load.after, name))


def event_curves(load: LoadComparison[MeasuredStream]) -> Iterator[Figure]:
    nouns = f"{load.before[0].run.noun}s"
    for title, before, after in all_latencies(load):
        yield from both_curves(title, nouns, before, after)


def both_curves(title: str, nouns: str, before: Sequence[float], after: Sequence[float]) -> Iterator[Figure]:
    """Empty if A or B has none."""
    both = sorted(before), sorted(after)
    if not all(both):
        return
    unit = time_unit(max(percentile(both[0], 50), *(values[-1] / 20 for values in both)))
    medians = [shown(percentile(values, 50), unit) for values in both]
    lines = [
        Line(f"A, median {medians[0]}", cumulative(both[0]), "soft", look="dash"),
        Line(f"B, median {medians[1]}", cumulative(both[1])),
    ]
    label = f"Share of {nouns} by {title}: median {medians[0]} of A, {medians[1]} of B"
    yield share_figure(title, lines, label=label, x_name=title, x_unit=unit, log_x=True)


def _values(runs: Sequence[MeasuredRun], name: str) -> list[float]:
    found = []
    for one in runs:
        found += tokens_and_gaps(one.run)[0] if name == "tpot" else response_and_service(one.run, name)[0]
    return [value for value in found if math.isfinite(value)]


def _reading(found: Comparison[Run], times: str) -> list[str]:
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
    return lines
