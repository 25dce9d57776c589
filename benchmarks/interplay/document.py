"""The document of `python -m benchmarks interplay`, and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.grid.streamed import figure, streamed_document
from benchmarks.interplay.factors import BASE_SETTINGS
from benchmarks.interplay.measurement import PointRun
from benchmarks.interplay.pipeline import InterplayOptions

FORMAT = "forebay-bench-interplay/1"
NONE = "–"
COLUMNS: Mapping[str, tuple[tuple[str, ...], float, int]] = {
    "running, mean": (("stream", "resources", "running_mean"), 1, 1),
    "waiting, most": (("stream", "resources", "waiting_max"), 1, 0),
    "KV cache, most": (("stream", "resources", "kv_cache_usage_max"), 100, 0),
    "prefix hits": (("stream", "resources", "prefix_hit_share"), 100, 0),
    "preemptions": (("stream", "resources", "preemptions"), 1, 0),
    "engine, cores": (("stream", "resources", "engine_cores_mean"), 1, 2),
    "pipeline, cores": (("stream", "resources", "run_cores_mean"), 1, 2),
    "answered p50, s": (("stream", "answered_s", "p50"), 1, 2),
    "longest, s": (("stream", "answered_s", "max"), 1, 2),
    "of it for a slot": (("stream", "stages_s", "slot", "p50"), 1, 2),
    "prefill": (("stream", "stages_s", "prefill", "p50"), 1, 2),
    "decode": (("stream", "stages_s", "decode", "p50"), 1, 2),
    "to commit, s": (("stream", "stages_s", "commit", "p50"), 1, 2),
    "lag, most": (("stream", "most_lag"), 1, 0),
    "checkpoint p50, ms": (("stream", "checkpoint_s", "p50"), 1000, 0),
    "state, kB": (("stream", "state_bytes", "mean"), 1e-3, 0),
}
"""Columns of the table: place in a cell's document, factor, decimals."""
PERCENT = {"KV cache, most", "prefix hits"}


def interplay_document(
    options: InterplayOptions,
    found: Sequence[PointRun],
    *,
    rate_per_s: float | None,
    expected: int,
    complete: bool,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """`cells`: each point with its differences from the base point, and its figures as in
    `streamed_document`. `valid`: whether all `expected` points were measured and are valid."""
    cells = [_cell(each) for each in found]
    return {
        "format": FORMAT,
        "complete": complete,
        "valid": complete and len(cells) == expected and all(cell["valid"] for cell in cells),
        "options": asdict(options),
        "base": dict(BASE_SETTINGS),
        "rate_per_s": rate_per_s,
        "cells": cells,
        "provenance": dict(provenance),
    }


def _cell(found: PointRun) -> dict[str, Any]:
    point = found.point
    return {
        "factor": point.factor,
        "value": point.value,
        "settings": dict(point.settings),
        "events": asdict(point.events),
        "kv_cache_gib": point.kv_cache_gib,
        "valid": not found.reasons,
        "reasons": list(found.reasons),
        "error": found.error,
        "stream": None if found.stream is None else streamed_document(found.stream),
    }


SHORT = ("running, mean", "KV cache, most", "prefix hits", "preemptions", "answered p50, s", "to commit, s")
"""Columns for which a terminal has room."""


def point_rows(document: Mapping[str, Any], columns: Sequence[str] = tuple(COLUMNS)) -> list[list[str]]:
    """Every point with its figures, header first; invalid ones in brackets. Leaves out columns without a
    figure."""
    cells = document["cells"]
    told = {
        name: COLUMNS[name]
        for name in columns
        if any(figure(cell, *COLUMNS[name][0]) is not None for cell in cells)
    }
    rows = [["", *told]]
    for cell in cells:
        row = [f"{cell['factor']}: {cell['value']}"]
        for name, (path, scale, digits) in told.items():
            value = figure(cell, *path)
            text = NONE if value is None else f"{value * scale:,.{digits}f}" + " %" * (name in PERCENT)
            row.append(text if cell["valid"] else f"({text})")
        rows.append(row)
    return rows
