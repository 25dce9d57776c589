"""The figures of a run in words, for a page and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.bench.metrics import Distribution, RunFigures
from forebay.bench.report.curves import percentages
from forebay.pages.units import MILLISECONDS, Unit, shown, time_unit

HEADER = ("", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "max")
NARROW = (0, 2, 5, 6, 7, 8, 9)
"""The columns for which a terminal has room."""
FIGURES = (
    ("ttft", "TTFT, response", True),
    ("service_ttft", "TTFT, service", True),
    ("tpot", "TPOT", True),
    ("itl_mean", "ITL, mean per request", True),
    ("token_gap", "gap between tokens", True),
    ("chunk_gap", "gap between chunks", True),
    ("longest_gap", "longest gap per request", True),
    ("e2el", "E2EL, response", True),
    ("service_e2el", "E2EL, service", True),
    ("schedule_delay", "schedule delay", True),
    ("prompt_tokens", "prompt", False),
    ("output_tokens", "output", False),
)


def figure_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    """A row of `HEADER` for each distribution, with its unit; dashes for percentiles of too few samples."""
    for name, words, timed in FIGURES:
        found = figures.distributions.get(name)
        if found is not None:
            unit = MILLISECONDS if timed else Unit("tokens")
            yield f"{words}, {unit.name}", f"{found.count:,}", *_values(found, Unit("", unit.scale))


def _values(found: Distribution, unit: Unit) -> Iterator[str]:
    percentiles = (found.percentiles.get(number) for number in (50, 90, 95, 99))
    for value in (found.mean, found.std, found.minimum, *percentiles, found.maximum):
        yield or_dash(value, unit)


def headline(figures: RunFigures) -> Iterator[tuple[str, str]]:
    yield "requests answered", f"{figures.answered:,} of {figures.offered:,}"
    yield "requests/s answered", shown(figures.requests_per_s)
    yield "output tokens/s", or_dash(figures.output_tokens_per_s)
    for name, words in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL")):
        found = figures.distributions.get(name)
        if found is not None:
            unit = time_unit(found.percentiles.get(50, found.mean))
            tail = max(percentages(found.count))
            beyond = f", p{tail:g} {shown(found.percentiles[tail], unit)}" if tail > 50 else ""
            yield f"{words} median{beyond}", shown(found.percentiles[50], unit)
    if figures.goodput is not None:
        yield "goodput: share within the objectives", f"{figures.goodput:.1%}"


def or_dash(value: float | None, unit: Unit | None = None) -> str:
    return "–" if value is None else shown(value, unit)
