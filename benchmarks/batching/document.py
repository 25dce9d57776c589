"""The document and the plot of `python -m benchmarks batching`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.batching.measurement import CONTINUOUS, STATIC, SYSTEMS, Batching, Cell
from forebay.bench.metrics import request_figures
from forebay.bench.statistics import percentile, suffices
from forebay.pages.charts import Bar, Line, bar_figure, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import Colour
from forebay.pages.units import SECONDS

FORMAT = "forebay-bench-batching/1"


def batching_document(
    found: Batching, *, held_equal: Mapping[str, Any], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """`throughput[limit][system]` in tokens per second of prompts and answers, as in the study;
    `output_throughput` of answers alone; `ratio[limit]`: continuous over static;
    `latency[rate][system]`, by the study's rate, with `p50_s`, `p99_s` (null with fewer than 1,000
    requests) and all sorted values, `cdf_s`."""
    limits = [limit for limit in found.options.limits if _row(found, limit)]
    rates = [
        rate
        for rate in found.options.rates_per_s
        if found.cell(STATIC, rate=rate) or found.cell(CONTINUOUS, rate=rate)
    ]
    reasons = {_name(cell): list(cell.reasons) for cell in found.cells if cell.reasons}
    return {
        "format": FORMAT,
        "complete": found.complete,
        "valid": found.complete and not reasons,
        "reasons": reasons,
        "options": asdict(found.options),
        "throughput": {
            str(limit): {cell.system: cell.figures.total_tokens_per_s for cell in _row(found, limit)}
            for limit in limits
        },
        "output_throughput": {
            str(limit): {cell.system: cell.figures.output_tokens_per_s for cell in _row(found, limit)}
            for limit in limits
        },
        "ratio": {str(limit): ratio(found, limit) for limit in limits},
        "settings": {
            str(limit): {
                cell.system: {"batch_size": cell.batch_size, "attention": cell.attention}
                for cell in _row(found, limit)
                if cell.batch_size is not None
            }
            for limit in limits
        },
        "latency": {
            f"{rate:g}": {
                system: _latency(cell)
                for system in SYSTEMS
                if (cell := found.cell(system, rate=rate)) is not None
            }
            for rate in rates
        },
        "static_sweep": [asdict(cost) for cost in found.costs],
        "durations_s": {_name(cell): cell.run.duration_s for cell in found.cells},
        "others_cores": {_name(cell): cell.others_cores for cell in found.cells},
        "held_equal": dict(held_equal),
        "provenance": dict(provenance),
    }


def ratio(found: Batching, limit: int, system: str = STATIC) -> float | None:
    ours, theirs = found.cell(CONTINUOUS, limit=limit), found.cell(system, limit=limit)
    if ours is None or theirs is None:
        return None
    top, bottom = ours.figures.total_tokens_per_s, theirs.figures.total_tokens_per_s
    return top / bottom if top and bottom else None


def latencies_s(cell: Cell) -> list[float]:
    """Sorted times from when each answered request was due to the end of its answer."""
    return sorted(one.e2el_s for one in map(request_figures, cell.run.records) if one is not None)


def _row(found: Batching, limit: int) -> list[Cell]:
    cells = (found.cell(system, limit=limit) for system in SYSTEMS)
    return [cell for cell in cells if cell is not None]


def _latency(cell: Cell) -> dict[str, Any]:
    ordered = latencies_s(cell)
    enough = suffices(len(ordered), 99)
    return {
        "p50_s": percentile(ordered, 50) if ordered else None,
        "p99_s": percentile(ordered, 99) if enough else None,
        "requests": len(cell.run.records),
        "rate_per_s": cell.rate_per_s,
        "batch_size": cell.batch_size,
        "attention": cell.attention,
        "cdf_s": [round(value, 4) for value in ordered],
    }


def _name(cell: Cell) -> str:
    return f"{cell.system}, " + (f"limit {cell.limit}" if cell.limit else f"{cell.rate:g} requests/s")


NAMES = {
    STATIC: "static batching (transformers)",
    CONTINUOUS: "continuous batching (vLLM)",
}
COLOURS: Mapping[str, Colour] = {STATIC: "red", CONTINUOUS: "blue"}


def batching_picture(document: Mapping[str, Any], title: str) -> Picture:
    """Throughput by limit as multiples of static batching, and by rate the share of requests
    answered within a time."""
    bars = [
        Bar(
            f"max {limit}, {NAMES[system]}",
            of[system] / of[STATIC],
            f"{of[system] / of[STATIC]:.1f}×",
            COLOURS[system],
        )
        for limit, of in document["throughput"].items()
        if of.get(STATIC) and of.get(CONTINUOUS)
        for system in SYSTEMS
        if of.get(system)
    ]
    what = "throughput, as a multiple of static batching"
    figures = [bar_figure("By the limit of the answers' lengths, in tokens", bars, x_name=what, label=what)]
    for rate, cells in document["latency"].items():
        if CONTINUOUS not in cells:
            continue
        sent, lines = float(rate), []
        for system in SYSTEMS:
            cell = cells.get(system)
            if cell is None or not (ordered := cell["cdf_s"]):
                continue
            sent = cell["rate_per_s"] or sent
            shares = [(took_s, (place + 1) / len(ordered)) for place, took_s in enumerate(ordered)]
            lines.append(Line(NAMES[system], shares, COLOURS[system], steps=True))
        panel = f"Share of requests, at {sent:.3g} requests/s (the study's {rate})"
        figures.append(share_figure(panel, lines, label=panel, x_name="latency", x_unit=SECONDS))
    return Picture(title, figures)
