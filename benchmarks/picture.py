"""Measurements as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.routing import RoutingReport
from forebay.pages.charts import Line, line_figure, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import NUMBER, Unit


def added_picture(added_ms: Mapping[str, Sequence[float]], title: str) -> Picture:
    """Cumulative distributions of the time added to an event, one line per system."""
    lines = [
        Line(
            name,
            [(max(ms, 0.01), share / (len(quantiles) - 1)) for share, ms in enumerate(quantiles)],
            colour,
        )
        for (name, quantiles), colour in zip(added_ms.items(), COLOURS, strict=False)
    ]
    x_name = "time added to an event, over the call itself"
    figure = share_figure("Share of events", lines, label=title, x_name=x_name, x_unit=Unit("ms"), log_x=True)
    return Picture(title, [figure])


PANELS = (
    ("goodput", "share of requests that met the SLO", False),
    ("ttft_mean_s", "mean time to first token, s", True),
    ("hit_share", "share of prompt tokens cached", False),
    ("imbalance", "busiest replica over the mean", True),
)


def routing_picture(report: RoutingReport, title: str) -> Picture:
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
