"""The document of a grid as tables of words and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.grid.streamed import figure
from forebay.pages.charts import Bar, bar_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import shown

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
                    _bracketed(told, valid=next(iter(at_once), None) not in (engine["reasons"] or ()))
                    for told in (
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
    told = {
        name: path for name, path in TIMES.items() if any(figure(cell, *path) is not None for cell in cells)
    }
    rows = [["model", "replicas × cores", "arrival", "lengths", "rate, 1/s", *told, "engine, cores", "run"]]
    for cell in cells:
        times = [_told(cell, path) for path in told.values()]
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
                _told(cell, (side, "resources", "engine_cores_mean")),
                _told(cell, (side, "resources", "run_cores_mean")),
            ]
        )
    return rows


def side_valid(cell: Mapping[str, Any], side: str) -> bool:
    """Whether a side of a cell, `serving` (the engine alone) or `stream`, is valid."""
    named = {"serving": "engine:", "stream": "stream:"}[side]
    return cell["error"] is None and not any(reason.startswith(named) for reason in cell["reasons"])


def _told(cell: Mapping[str, Any], path: Sequence[str]) -> str:
    return _bracketed(number(figure(cell, *path), 2), valid=side_valid(cell, path[0]))


def _bracketed(told: str, *, valid: bool) -> str:
    return told if valid or told == NONE else f"({told})"


def short_model(model: str) -> str:
    """The name of a model without its owner."""
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
