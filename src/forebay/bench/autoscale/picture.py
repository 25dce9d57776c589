"""Frontiers of goodput against cost: a panel per load, boot and SLO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forebay.bench.autoscale.contenders import FIXED, OTHERS
from forebay.bench.autoscale.measure import Comparison


def draw_frontiers(path: Path, found: Sequence[Comparison]) -> None:
    """Each policy's settings as points, the oracle as a line. Cost is in multiples of the work."""
    from matplotlib.figure import Figure

    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel, one in zip(panels, found, strict=False):
        for name in (FIXED, *OTHERS):
            points = [each for each in one.others if each.policy == name]
            costs = [each.replica_seconds / one.work_s for each in points]
            panel.plot(costs, [each.goodput for each in points], ".", markersize=4, label=name)
        mine = one.deadline
        panel.plot([mine.replica_seconds / one.work_s], [mine.goodput], "k*", markersize=11, label="deadline")
        panel.axvline(one.oracle_seconds / one.work_s, color="grey", linestyle=":", label="oracle (99 %)")
        panel.set_xlim(0.9, max(4.0, 1.2 * mine.replica_seconds / one.work_s))
        panel.set_ylim(0.6, 1.01)
        panel.set_title(f"{one.load}, boot {one.boot_s:g} s, SLO {one.slo_s:g} s", fontsize=10)
        panel.set_xlabel("replica-seconds / work")
        panel.set_ylabel("goodput")
        panel.grid(visible=True, alpha=0.3)
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    panels[0].legend(fontsize=7)
    figure.savefig(path)
