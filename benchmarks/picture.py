"""Measurements as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_added(path: Path, added_ms: Mapping[str, Sequence[float]], title: str) -> None:
    """`added_figure` as a PNG, SVG or PDF. `check_drawing` says before whether this will work."""
    added_figure(added_ms, title).savefig(path)


def added_figure(added_ms: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Cumulative distributions of the time added to an event, one line per system. Each sequence holds the
    0 … 100 % quantiles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, quantiles in added_ms.items():
        shares = [index / (len(quantiles) - 1) for index in range(len(quantiles))]
        axes.plot([max(value, 0.01) for value in quantiles], shares, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("time added to an event, over the call itself (ms)")
    axes.set_ylabel("share of events")
    axes.set_ylim(0, 1)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.set_title(title)
    axes.legend()
    return figure


def splits_figure(found: Mapping[str, Any]) -> Figure:
    """The rate that each split of a fleet takes, a panel per workload, beside what the undivided fleet takes;
    `found` is what `benchmarks.disaggregation.measure` gives."""
    from matplotlib.figure import Figure

    workloads = found["workloads"]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels = figure.subplots(1, len(workloads), squeeze=False)[0]
    for axes, (name, one) in zip(panels, workloads.items(), strict=True):
        rates = {int(prefill): rate for prefill, rate in one["rates_per_s"].items()}
        axes.plot(list(rates), list(rates.values()), marker=".", label="split")
        planned = one["planned_prefill"]
        axes.plot([planned], [rates[planned]], marker="o", fillstyle="none", color="tab:red", label="planned")
        axes.axhline(one["mixed_per_s"], color="tab:gray", linestyle="--", label="undivided")
        axes.set_title(name)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"prefill replicas of {found['replicas']}")
        axes.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("requests per second")
    panels[0].legend()
    return figure
