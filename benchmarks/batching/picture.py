"""The plot of `python -m benchmarks batching`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.batching.measurement import CONTINUOUS, LONGEST_OF_ALL, STATIC, SYSTEMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    STATIC: "static batching (transformers)",
    LONGEST_OF_ALL: "static, each batch as long as the longest of all",
    CONTINUOUS: "continuous batching (vLLM)",
}
COLOURS = {STATIC: "#c2571a", LONGEST_OF_ALL: "#8a8f98", CONTINUOUS: "#1f6f8b"}


def batching_figure(document: Mapping[str, Any], title: str) -> Figure:
    """Throughput by limit as multiples of static batching, and by rate the share of requests answered within
    a time. Leaves out limits and rates that one of the two systems lacks."""
    from matplotlib.figure import Figure

    throughput = document["throughput"]
    limits = [limit for limit, of in throughput.items() if of.get(STATIC) and of.get(CONTINUOUS)]
    rates = [rate for rate, of in document["latency"].items() if CONTINUOUS in of]
    figure = Figure(figsize=(4.6 * (1 + len(rates)), 4.2), layout="constrained")
    panels = figure.subplots(1, 1 + len(rates), squeeze=False)[0]
    for place, limit in enumerate(limits):
        of = throughput[limit]
        bars = [(system, of[system] / of[STATIC]) for system in (LONGEST_OF_ALL, STATIC) if of.get(system)]
        bars.append((CONTINUOUS, of[CONTINUOUS] / of[STATIC]))
        width = 0.8 / len(bars)
        for number, (system, height) in enumerate(bars):
            x = place + (number - (len(bars) - 1) / 2) * width
            label = NAMES[system] if place == 0 else None
            panels[0].bar(x, height, width, color=COLOURS[system], label=label)
            panels[0].annotate(f"{height:.1f}×", (x, height), ha="center", va="bottom", fontsize=9)
    panels[0].set_xticks(range(len(limits)), [f"max {limit}" for limit in limits])
    panels[0].set_xlabel("limit of the answers' lengths, tokens")
    panels[0].set_ylabel("throughput, as a multiple of static batching")
    if limits:
        panels[0].legend(fontsize=8, loc="upper left")
    panels[0].margins(y=0.3)
    for panel, rate in zip(panels[1:], rates, strict=True):
        sent = float(rate)
        for system in SYSTEMS:
            cell = document["latency"][rate].get(system)
            if cell is None or not (ordered := cell["cdf_s"]):
                continue
            sent = cell["rate_per_s"] or sent
            shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
            panel.step(ordered, shares, where="post", color=COLOURS[system], label=NAMES[system])
        panel.set_xlabel(f"latency, s, at {sent:.3g} requests/s (the study's {rate})")
        panel.set_ylabel("share of requests")
        panel.set_ylim(0, 1)
        panel.set_xlim(left=0)
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize=8, loc="lower right")
    figure.suptitle(title)
    return figure
