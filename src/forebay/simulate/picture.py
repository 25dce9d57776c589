"""Runs of the simulator as a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from forebay.errors import SettingError, SetupError

MISSING = "pictures need matplotlib; install it with: pip install 'forebay[plot]'"
SUFFIXES = (".png", ".svg", ".pdf")


def check_drawing(path: Path) -> None:
    """Raise `SetupError` where matplotlib is missing, `SettingError` where `path` ends otherwise."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SetupError(MISSING)
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(f"--plot: expected a name that ends in {', '.join(SUFFIXES)}, found {path.name!r}")


def draw_runs(path: Path, lines: dict[str, tuple[tuple[float, ...], tuple[float, ...]]], title: str) -> None:
    """Cumulative distributions of TTFT and latency: by policy, the 0 … 100 % quantiles of both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2)
    for at, label in enumerate(("time to first token (s)", "latency (s)")):
        for policy, quantiles in lines.items():
            values = quantiles[at]
            shares = [index / max(len(values) - 1, 1) for index in range(len(values))]
            panels[at].plot([max(value, 1e-3) for value in values], shares, label=policy)
        panels[at].set_xscale("log")
        panels[at].set_xlabel(label)
        panels[at].set_ylabel("share of requests")
        panels[at].grid(visible=True, alpha=0.3)
    panels[0].legend()
    figure.suptitle(title)
    figure.savefig(path)
