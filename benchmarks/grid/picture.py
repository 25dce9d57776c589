"""The plot of `python -m benchmarks grid`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.grid.streamed import figure
from benchmarks.grid.table import parallelism_name, short_model, side_valid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#1f6f8b", "#c2571a", "#6b8e23", "#8a5fbf", "#8a8f98", "#b8860b")


def grid_figure(document: Mapping[str, Any]) -> Figure:
    """Two panels: output tokens per second of each engine with all requests at once, by tail; and a map of
    each cell's median from event to answer, engines by conditions. Invalid values are pale, or in brackets.
    """
    from matplotlib.figure import Figure

    engines = [_engine(each) for each in document["engines"]]
    conditions = list(dict.fromkeys(map(_condition, document["cells"])))
    width = 5.0 + 0.9 * max(len(conditions), 3) + 2.0
    figure_ = Figure(figsize=(width, 1.6 + 0.5 * max(len(engines), 3)), layout="constrained")
    bars, cells = figure_.subplots(1, 2, width_ratios=(4, 1 + 0.9 * max(len(conditions), 3)))
    _draw_throughput(bars, document, engines)
    _draw_cells(figure_, cells, document["cells"], engines, conditions)
    return figure_


def _draw_throughput(panel: Any, document: Mapping[str, Any], engines: Sequence[str]) -> None:
    tails = document["options"]["tails"]
    height = 0.8 / len(tails)
    for place, tail in enumerate(tails):
        values = [
            figure(engine["at_once"].get(tail, {}), "output_tokens_per_s") or 0.0
            for engine in document["engines"]
        ]
        at = [row + (place - (len(tails) - 1) / 2) * height for row in range(len(engines))]
        bars = panel.barh(at, values, height, color=COLOURS[place % len(COLOURS)], label=f"{tail} lengths")
        for bar, engine in zip(bars, document["engines"], strict=True):
            bar.set_alpha(0.4 if tail in engine["reasons"] else 1.0)
    panel.set_yticks(range(len(engines)), engines, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("output tokens/s, all requests at once")
    panel.legend(fontsize=8)


def _draw_cells(
    drawing: Any,
    panel: Any,
    cells: Sequence[Mapping[str, Any]],
    engines: Sequence[str],
    conditions: Sequence[str],
) -> None:
    streamed = any(cell["stream"] for cell in cells)
    path = ("stream", "answered_s", "p50") if streamed else ("serving", "e2el_s", "p50")
    found: dict[tuple[int, int], list[float]] = {}
    doubtful: set[tuple[int, int]] = set()
    for cell in cells:
        value = figure(cell, *path)
        if value is not None:
            place = (engines.index(_engine(cell)), conditions.index(_condition(cell)))
            found.setdefault(place, []).append(value)
            if not side_valid(cell, path[0]):
                doubtful.add(place)
    means = {place: sum(values) / len(values) for place, values in found.items()}
    blank = float("nan")
    rows = [[means.get((y, x), blank) for x in range(len(conditions))] for y in range(len(engines))]
    if rows and conditions:
        image = panel.imshow(rows, aspect="auto", cmap="YlOrBr", vmin=0)
        drawing.colorbar(image, ax=panel, label="s")
    for (y, x), value in means.items():
        dark = value > 0.6 * max(means.values())
        told = f"({value:.2f})" if (y, x) in doubtful else f"{value:.2f}"
        panel.annotate(told, (x, y), ha="center", va="center", color="white" if dark else "black")
    panel.set_yticks(range(len(engines)), engines if not streamed else [""] * len(engines), fontsize=8)
    panel.set_xticks(range(len(conditions)), conditions, fontsize=8)
    panel.set_title(f"median from {'event to answer' if streamed else 'due to last token'}, s", fontsize=9)


def _engine(one: Mapping[str, Any]) -> str:
    return f"{short_model(one['model'])}, {parallelism_name(one['parallelism'])}"


def _condition(cell: Mapping[str, Any]) -> str:
    tasks = f"\n{cell['subtasks']} subtasks" if cell["subtasks"] > 1 else ""
    return f"{cell['arrival']}\n{cell['tail']}{tasks}"
