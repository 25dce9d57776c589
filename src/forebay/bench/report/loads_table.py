"""All loads of a report in one table, a row each, for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.bench.report.document import MeasuredRun
from forebay.bench.statistics import mean_interval
from forebay.pages.units import MILLISECONDS, NUMBER, Unit, shown

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL"))
PLUS_MINUS = "± is half of the 95 % confidence interval of the mean over repeats (Student's t)."
Loads = Sequence[tuple[str, Sequence[MeasuredRun]]]


def loads_table(named: Loads) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A header, and a row for each of `loads`: name, number of runs if there are repeats, verdict, key
    figures as means over repeats with their intervals, failed requests.

    Figures that no load has are left out; one that a run lacks is a dash.
    """
    columns: list[tuple[str, list[list[float | None]], Unit]] = [
        ("requests/s", [[one.figures.requests_per_s for one in own] for _, own in named], NUMBER),
        ("output tokens/s", [[one.figures.output_tokens_per_s for one in own] for _, own in named], NUMBER),
    ]
    for name, words in LATENCIES:
        medians = [[_median(one, name) for one in own] for _, own in named]
        columns.append((f"{words} p50, {MILLISECONDS.name}", medians, Unit("", MILLISECONDS.scale)))
    goodput = [[one.figures.goodput for one in own] for _, own in named]
    columns.append(("goodput, %", goodput, Unit("", 100.0)))
    columns = [column for column in columns if any(any(v is not None for v in own) for own in column[1])]
    repeated = has_repeats(named)
    header = ("load", *(["runs"] if repeated else []), "", *(name for name, _, _ in columns), "failed")
    rows = [
        (
            load,
            *([str(len(own))] if repeated else []),
            _verdict(own),
            *(_over_repeats(values[number], unit) for _, values, unit in columns),
            f"{sum(one.figures.failed for one in own):,}",
        )
        for number, (load, own) in enumerate(named)
    ]
    return header, rows


def has_repeats(named: Loads) -> bool:
    return any(len(own) > 1 for _, own in named)


def _verdict(own: Sequence[MeasuredRun]) -> str:
    invalid = sum(one.word == "INVALID" for one in own)
    if invalid:
        return "INVALID" if invalid == len(own) else f"{invalid} INVALID"
    return "VALID" if all(one.word for one in own) else "–"


def _median(measured: MeasuredRun, name: str) -> float | None:
    found = measured.figures.distributions.get(name)
    return None if found is None else found.percentiles.get(50)


def _over_repeats(values: Sequence[float | None], unit: Unit) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    interval = mean_interval(known)
    if interval is None:
        return shown(known[0], unit)
    return f"{shown(interval.mean, unit)} ± {shown((interval.high - interval.low) / 2, unit, digits=2)}"
