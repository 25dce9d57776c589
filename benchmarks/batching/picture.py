"""The plot of `python -m benchmarks batching`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.batching.measurement import CONTINUOUS, LONGEST_OF_ALL, STATIC, SYSTEMS
from forebay.pages.charts import Bar, Line, bar_figure, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import Colour
from forebay.pages.units import SECONDS

NAMES = {
    STATIC: "static batching (transformers)",
    LONGEST_OF_ALL: "static, each batch as long as the longest of all",
    CONTINUOUS: "continuous batching (vLLM)",
}
COLOURS: Mapping[str, Colour] = {STATIC: "red", LONGEST_OF_ALL: "faint", CONTINUOUS: "blue"}


def batching_picture(document: Mapping[str, Any], title: str) -> Picture:
    """Throughput by limit as multiples of static batching, and by rate the share of requests answered within
    a time. Leaves out limits and rates that one of the two systems lacks."""
    bars = [
        Bar(
            f"max {limit}, {NAMES[system]}",
            of[system] / of[STATIC],
            f"{of[system] / of[STATIC]:.1f}×",
            COLOURS[system],
        )
        for limit, of in document["throughput"].items()
        if of.get(STATIC) and of.get(CONTINUOUS)
        for system in (LONGEST_OF_ALL, STATIC, CONTINUOUS)
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
