"""Routing policies over loads, as a picture."""

from __future__ import annotations

from pathlib import Path

from benchmarks.routing import RoutingReport
from forebay.fleet.policies import DEFAULT_POLICY

PANELS = (
    ("goodput", "share of requests that met the SLO", False),
    ("ttft_mean_s", "mean time to first token (s)", True),
    ("hit_share", "share of prompt tokens cached", False),
    ("imbalance", "busiest replica over the mean", True),
)


def draw_routing(path: Path, report: RoutingReport, title: str) -> None:
    """One panel per figure, one line per policy, as a PNG, SVG or PDF (`picture.check_drawing` says before
    whether this will work).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (name, label, logarithmic) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for policy, found in report.policies.items():
            mine = policy == DEFAULT_POLICY
            values = [getattr(one, name) for one in found]
            axes.plot(
                report.loads, values, label=policy, linewidth=2.5 if mine else 1.2, zorder=3 if mine else 2
            )
        if logarithmic:
            axes.set_yscale("log")
        axes.set_xlabel("offered load, share of capacity")
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle(title)
    figure.savefig(path)
