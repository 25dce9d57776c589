"""The document of `python -m benchmarks grid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.grid.cells import GridOptions, Parallelism
from benchmarks.grid.measurement import Capacity, Cell, Found, Served
from benchmarks.grid.signals import sample_figures
from benchmarks.grid.streamed import distribution_document, figure, streamed_document
from forebay.bench.statistics import mean_interval

FORMAT = "forebay-bench-grid/1"


def grid_document(
    options: GridOptions, found: Sequence[Found], *, complete: bool, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """`engines`: the throughput of each, all requests at once; `cells`: the figures of each.

    Times are in seconds; percentiles of too few samples are absent. `valid`: whether everything requested is.
    `repeats`: mean and 95 % interval of the main figures over the repeats of a cell.
    """
    engines = [_capacity(each) for each in found if isinstance(each, Capacity)]
    cells = [_cell(each) for each in found if isinstance(each, Cell)]
    expected = len(list(options.engines())) * len(options.cells(options.models[0], options.parallelisms[0]))
    valid = all(each["valid"] for each in (*engines, *cells)) and len(cells) == expected
    return {
        "format": FORMAT,
        "complete": complete,
        "valid": complete and valid,
        "options": {**asdict(options), "trace_s": len(options.trace_s)},
        "engines": engines,
        "cells": cells,
        "repeats": _repeats(cells) if options.repeats > 1 else [],
        "provenance": dict(provenance),
    }


def _capacity(capacity: Capacity) -> dict[str, Any]:
    reasons = {tail: list(served.reasons) for tail, served in capacity.bursts.items() if served.reasons}
    return {
        "model": capacity.model,
        "parallelism": _parallelism(capacity.parallelism),
        "valid": not reasons and capacity.error is None,
        "reasons": reasons,
        "error": capacity.error,
        "requests_per_s": capacity.requests_per_s,
        "at_once": {tail: served_document(served) for tail, served in capacity.bursts.items()},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    spec = cell.spec
    return {
        "model": spec.model,
        "parallelism": _parallelism(spec.parallelism),
        "subtasks": spec.subtasks,
        "arrival": spec.arrival,
        "tail": spec.tail,
        "repeat": spec.repeat,
        "rate_per_s": cell.rate_per_s,
        "valid": not cell.reasons,
        "reasons": list(cell.reasons),
        "error": cell.error,
        "serving": None if cell.serving is None else served_document(cell.serving),
        "stream": None if cell.stream is None else streamed_document(cell.stream),
    }


def served_document(served: Served) -> dict[str, Any]:
    figures = served.measured.figures
    run = served.measured.run
    return {
        "requests": figures.offered,
        "failed": figures.failed,
        "duration_s": figures.duration_s,
        "requests_per_s": figures.requests_per_s,
        "output_tokens_per_s": figures.output_tokens_per_s,
        "total_tokens_per_s": figures.total_tokens_per_s,
        **{
            f"{name}_s": distribution_document(figures.distributions.get(name))
            for name in ("ttft", "tpot", "e2el")
        },
        "others_cores": served.others_cores,
        "resources": sample_figures(run.samples, run.duration_s),
    }


def _parallelism(parallelism: Parallelism) -> dict[str, int | None]:
    return {"replicas": parallelism.replicas, "cores_each": parallelism.cores_each}


MAIN = {
    "stream_answered_p50_s": ("stream", "answered_s", "p50"),
    "stream_committed_p50_s": ("stream", "committed_s", "p50"),
    "serving_e2el_p50_s": ("serving", "e2el_s", "p50"),
    "serving_output_tokens_per_s": ("serving", "output_tokens_per_s"),
}
"""Figures that get an interval over repeats, and their places in a cell."""


def _repeats(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        key = (cell["model"], *cell["parallelism"].values(), cell["subtasks"], cell["arrival"], cell["tail"])
        groups.setdefault(key, []).append(cell)
    found = []
    for own in groups.values():
        same = {name: own[0][name] for name in ("model", "parallelism", "subtasks", "arrival", "tail")}
        intervals = {}
        for name, path in MAIN.items():
            values = [value for cell in own if (value := figure(cell, *path)) is not None]
            interval = mean_interval(values)
            intervals[name] = None if interval is None else asdict(interval)
        found.append({**same, **intervals})
    return found
