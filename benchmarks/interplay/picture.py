"""The plot of `python -m benchmarks interplay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.grid.streamed import figure
from benchmarks.interplay.factors import BASE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENGINE, STREAM, STATE = "#1f6f8b", "#c2571a", "#6b8e23"
PANELS: Sequence[tuple[str, tuple[str, ...], float, str]] = (
    ("running at the engine, mean", ("stream", "resources", "running_mean"), 1, ENGINE),
    ("KV cache used, most, %", ("stream", "resources", "kv_cache_usage_max"), 100, ENGINE),
    ("prefix hits, % of prompt tokens", ("stream", "resources", "prefix_hit_share"), 100, ENGINE),
    ("preemptions", ("stream", "resources", "preemptions"), 1, ENGINE),
    ("event to answer, median, s", ("stream", "answered_s", "p50"), 1, STREAM),
    ("event to commit, median, s", ("stream", "committed_s", "p50"), 1, STREAM),
    ("checkpoint, median, ms", ("stream", "checkpoint_s", "p50"), 1000, STATE),
)


def interplay_figure(document: Mapping[str, Any]) -> Figure:
    """A row for each point, a panel for each figure; dashed: the base point, twice; pale: invalid."""
    from matplotlib.figure import Figure

    cells = document["cells"]
    names = [cell["factor"] if cell["factor"] == BASE else _name(cell) for cell in cells]
    height = 1.2 + 0.28 * max(len(cells), 4)
    drawing = Figure(figsize=(3.0 + 2.0 * len(PANELS), height), layout="constrained")
    panels = drawing.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    for panel, (title, where, scale, colour) in zip(panels, PANELS, strict=True):
        values = [figure(cell, *where) for cell in cells]
        drawn = [0.0 if value is None else value * scale for value in values]
        bars = panel.barh(range(len(cells)), drawn, color=colour)
        for bar, cell, value in zip(bars, cells, values, strict=True):
            bar.set_alpha(1.0 if cell["valid"] else 0.4)
            if value is not None:
                told = f" {value * scale:.3g}"
                panel.annotate(told, (value * scale, bar.get_y() + 0.4), va="center", fontsize=7)
        for cell, value in zip(cells, drawn, strict=True):
            if cell["factor"] == BASE:
                panel.axvline(value, color="#8a8f98", linestyle="--", linewidth=0.8)
        if colour == STREAM and any(drawn):
            panel.set_xscale("log")
        panel.set_title(title, fontsize=8)
        panel.margins(x=0.2)
        panel.tick_params(labelsize=7)
    panels[0].set_yticks(range(len(cells)), names, fontsize=7)
    panels[0].invert_yaxis()
    return drawing


def _name(cell: Mapping[str, Any]) -> str:
    return f"{cell['factor']}: {cell['value']}"
