"""The plot of `python -m benchmarks grid`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.grid.streamed import figure
from benchmarks.grid.table import parallelism_name, short_model, side_valid
from forebay.pages.charts import Bar, bar_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import shown


def grid_picture(document: Mapping[str, Any]) -> Picture:
    """Two panels: output tokens per second of each engine with all requests at once, by tail; and each
    cell's median from event to answer, a colour for each condition. Invalid values are pale, and in brackets.
    """
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
