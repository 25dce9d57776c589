"""What `forebay bench batching` found, as a picture."""

from __future__ import annotations

from pathlib import Path

from forebay.bench.presets.batching import CONTINUOUS, LONGEST_OF_ALL, STATIC, SYSTEMS, Batching
from forebay.bench.presets.batching_document import latencies_s, ratio

NAMES = {
    STATIC: "static batching (transformers)",
    LONGEST_OF_ALL: "static, each batch as long as the longest of all",
    CONTINUOUS: "continuous batching (vLLM)",
}
COLOURS = {STATIC: "#c2571a", LONGEST_OF_ALL: "#8a8f98", CONTINUOUS: "#1f6f8b"}


def draw_batching(path: Path, found: Batching, title: str) -> None:
    """Throughput by limit as multiples of static batching, and by rate the share of requests answered within
    a time; as a PNG, SVG or PDF. `check_drawing` of forebay.simulate.figures says whether this will work."""
    from matplotlib.figure import Figure

    rates = [rate for rate in found.options.rates_per_s if found.cell(CONTINUOUS, rate=rate)]
    figure = Figure(figsize=(4.6 * (1 + len(rates)), 4.2), layout="constrained")
    panels = figure.subplots(1, 1 + len(rates), squeeze=False)[0]
    limits = [limit for limit in found.options.limits if ratio(found, limit)]
    for place, limit in enumerate(limits):
        ours = ratio(found, limit) or 0.0
        strict = ratio(found, limit, LONGEST_OF_ALL)
        bars = [(STATIC, 1.0), (CONTINUOUS, ours)]
        if strict:
            bars.insert(0, (LONGEST_OF_ALL, ours / strict))
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
        sent = rate
        for system in SYSTEMS:
            cell = found.cell(system, rate=rate)
            if cell is None or not (ordered := latencies_s(cell)):
                continue
            sent = cell.rate_per_s or rate
            shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
            panel.step(ordered, shares, where="post", color=COLOURS[system], label=NAMES[system])
        panel.set_xlabel(f"latency, s, at {sent:.3g} requests/s (the study's {rate:g})")
        panel.set_ylabel("share of requests")
        panel.set_ylim(0, 1)
        panel.set_xlim(left=0)
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize=8, loc="lower right")
    figure.suptitle(title)
    figure.savefig(path)
