"""The document of `python -m benchmarks grid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.grid.cells import GridOptions, Parallelism
from benchmarks.grid.measurement import Capacity, Cell, Found, Served
from benchmarks.grid.streamed import distribution_document, figure, sample_figures, streamed_document
from forebay.bench.statistics import mean_interval
from forebay.pages.charts import Bar, bar_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import shown

FORMAT = "forebay-bench-grid/1"


def grid_document(
    options: GridOptions, found: Sequence[Found], *, complete: bool, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """`engines`: the throughput of each, all requests at once; `cells`: the figures of each."""
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


NONE = "–"
Rows = list[list[str]]
"""A table, header first."""


def engine_rows(document: Mapping[str, Any]) -> Rows:
    """Output tokens per second of each engine with all requests at once, by tail."""
    tails: Sequence[str] = document["options"]["tails"]
    rows = [
        ["model", "replicas × cores", *(f"{tail}, tokens/s" for tail in tails), "cores busy", "memory, GB"]
    ]
    for engine in document["engines"]:
        at_once = engine["at_once"]
        first: Mapping[str, Any] = next(iter(at_once.values()), {})
        rates = [number(figure(at_once.get(tail, {}), "output_tokens_per_s"), 0) for tail in tails]
        if engine["reasons"]:
            rates = [
                f"({rate})" if tail in engine["reasons"] else rate
                for tail, rate in zip(tails, rates, strict=True)
            ]
        memory = figure(first, "resources", "engine_memory_mb_max")
        rows.append(
            [
                short_model(engine["model"]),
                parallelism_name(engine["parallelism"]),
                *rates,
                *(
                    _bracketed(columns, valid=next(iter(at_once), None) not in (engine["reasons"] or ()))
                    for columns in (
                        number(figure(first, "resources", "engine_cores_mean"), 1),
                        number(None if memory is None else memory / 1000, 1),
                    )
                ),
            ]
        )
    return rows


TIMES = {
    "event to answer p50, s": ("stream", "answered_s", "p50"),
    "p90": ("stream", "answered_s", "p90"),
    "to commit p50": ("stream", "committed_s", "p50"),
    "commit p90": ("stream", "committed_s", "p90"),
    "engine alone p50": ("serving", "e2el_s", "p50"),
    "alone p90": ("serving", "e2el_s", "p90"),
}
"""The times of a cell in seconds, and their places in its document."""


def cell_rows(document: Mapping[str, Any]) -> Rows:
    """Every cell: arrivals, an event's time through the pipeline, and the engine's own; invalid
    values in brackets."""
    cells = document["cells"]
    columns = {
        name: path for name, path in TIMES.items() if any(figure(cell, *path) is not None for cell in cells)
    }
    rows = [
        ["model", "replicas × cores", "arrival", "lengths", "rate, 1/s", *columns, "engine, cores", "run"]
    ]
    for cell in cells:
        times = [_figure(cell, path) for path in columns.values()]
        side = "serving" if cell["stream"] is None else "stream"
        tasks = f", {cell['subtasks']} subtasks" if cell["subtasks"] > 1 else ""
        rows.append(
            [
                short_model(cell["model"]),
                parallelism_name(cell["parallelism"]) + tasks,
                cell["arrival"],
                cell["tail"],
                number(cell["rate_per_s"], 2),
                *times,
                _figure(cell, (side, "resources", "engine_cores_mean")),
                _figure(cell, (side, "resources", "run_cores_mean")),
            ]
        )
    return rows


def side_valid(cell: Mapping[str, Any], side: str) -> bool:
    named = {"serving": "engine:", "stream": "stream:"}[side]
    return cell["error"] is None and not any(reason.startswith(named) for reason in cell["reasons"])


def _figure(cell: Mapping[str, Any], path: Sequence[str]) -> str:
    return _bracketed(number(figure(cell, *path), 2), valid=side_valid(cell, path[0]))


def _bracketed(text: str, *, valid: bool) -> str:
    return text if valid or text == NONE else f"({text})"


def short_model(model: str) -> str:
    return "SmolLM2-135M" if model == "default" else model.rpartition("/")[2].removeprefix("random:")


def parallelism_name(parallelism: Mapping[str, Any]) -> str:
    """`2 × 1` for two replicas with a core each."""
    each = parallelism["cores_each"]
    return f"{parallelism['replicas']}" if each is None else f"{parallelism['replicas']} × {each}"


def number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def grid_picture(document: Mapping[str, Any]) -> Picture:
    """Two panels: output tokens per second of each engine with all requests at once, by tail; and
    each cell's median from event to answer, a colour for each condition."""
    tails = document["options"]["tails"]
    throughput = [
        _bar(
            f"{_engine(engine)}, {tail} lengths",
            [figure(engine["at_once"].get(tail, {}), "output_tokens_per_s") or 0.0],
            number,
            tail not in engine["reasons"],
        )
        for engine in document["engines"]
        for number, tail in enumerate(tails)
    ]
    streamed = any(cell["stream"] for cell in document["cells"])
    path = ("stream", "answered_s", "p50") if streamed else ("serving", "e2el_s", "p50")
    found: dict[tuple[str, str], list[float]] = {}
    doubtful = set()
    for cell in document["cells"]:
        value, place = figure(cell, *path), (_engine(cell), _condition(cell))
        if value is not None:
            found.setdefault(place, []).append(value)
            if not side_valid(cell, path[0]):
                doubtful.add(place)
    conditions = list(dict.fromkeys(map(_condition, document["cells"])))
    medians = [
        _bar(
            f"{engine}: {condition}", values, conditions.index(condition), (engine, condition) not in doubtful
        )
        for (engine, condition), values in found.items()
    ]
    at_once = "output tokens/s, all requests at once"
    median = f"median from {'event to answer' if streamed else 'due to last token'}, s"
    return Picture(
        "",
        [
            bar_figure("Throughput", throughput, x_name=at_once, label=at_once),
            bar_figure("Latency", medians, x_name=median, label=median),
        ],
    )


def _bar(name: str, values: list[float], number: int, valid: bool) -> Bar:
    mean = sum(values) / len(values)
    words = shown(mean) if valid else f"({shown(mean)})"
    return Bar(name, mean, words, COLOURS[number % len(COLOURS)], pale=not valid)


def _engine(one: Mapping[str, Any]) -> str:
    return f"{short_model(one['model'])}, {parallelism_name(one['parallelism'])}"


def _condition(cell: Mapping[str, Any]) -> str:
    tasks = f", {cell['subtasks']} subtasks" if cell["subtasks"] > 1 else ""
    return f"{cell['arrival']}, {cell['tail']}{tasks}"
