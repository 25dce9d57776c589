"""Routing policies over loads, as a picture."""

from __future__ import annotations

from benchmarks.routing import RoutingReport
from forebay.pages.charts import Line, line_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import NUMBER

PANELS = (
    ("goodput", "share of requests that met the SLO", False),
    ("ttft_mean_s", "mean time to first token, s", True),
    ("hit_share", "share of prompt tokens cached", False),
    ("imbalance", "busiest replica over the mean", True),
)


def routing_picture(report: RoutingReport, title: str) -> Picture:
    """One panel per figure, one line per policy."""
    figures = [
        line_figure(
            words,
            [
                Line(
                    policy,
                    [(load, getattr(one, name)) for load, one in zip(report.loads, found, strict=True)],
                    COLOURS[number % len(COLOURS)],
                    "line" if number < len(COLOURS) else "dash",
                )
                for number, (policy, found) in enumerate(report.policies.items())
            ],
            label=f"{words} by the offered load",
            x_name="offered load, share of capacity",
            x_unit=NUMBER,
            y_unit=NUMBER,
            log_y=log,
        )
        for name, words, log in PANELS
    ]
    return Picture(title, figures)
