"""The plot of `python -m benchmarks interplay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.grid.streamed import figure
from benchmarks.interplay.factors import BASE
from forebay.pages.charts import Bar, bar_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import Colour

ENGINE: Colour = "blue"
STREAM: Colour = "red"
STATE: Colour = "green"
PANELS: Sequence[tuple[str, tuple[str, ...], float, Colour]] = (
    ("running at the engine, mean", ("stream", "resources", "running_mean"), 1, ENGINE),
    ("KV cache used, most, %", ("stream", "resources", "kv_cache_usage_max"), 100, ENGINE),
    ("prefix hits, % of prompt tokens", ("stream", "resources", "prefix_hit_share"), 100, ENGINE),
    ("preemptions", ("stream", "resources", "preemptions"), 1, ENGINE),
    ("event to answer, median, s", ("stream", "answered_s", "p50"), 1, STREAM),
    ("event to commit, median, s", ("stream", "committed_s", "p50"), 1, STREAM),
    ("checkpoint, median, ms", ("stream", "checkpoint_s", "p50"), 1000, STATE),
)


def interplay_picture(document: Mapping[str, Any]) -> Picture:
    """A panel for each figure, a bar for each point; dashed: the base point, twice; pale: invalid."""
    figures = []
    for title, where, scale, colour in PANELS:
        bars, base = [], list[float]()
        for cell in document["cells"]:
            value = figure(cell, *where)
            scaled = 0.0 if value is None else value * scale
            name = BASE if cell["factor"] == BASE else f"{cell['factor']}: {cell['value']}"
            words = "–" if value is None else f"{scaled:.3g}"
            bars.append(Bar(name, scaled, words, colour, pale=not cell["valid"]))
            base += [scaled] if cell["factor"] == BASE else []
        log = colour == STREAM
        figures.append(bar_figure(title, bars, x_name=title, label=title, log=log, marks=base))
    return Picture("", figures, columns=3)
