"""Plots a scaled run: backlog, arrivals and replicas over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.pages.charts import Line, time_figure
from forebay.pages.picture import Picture


def course_picture(course: Sequence[Mapping[str, Any]], title: str) -> Picture:
    """Panels over the same time: waiting records, arriving records, and replicas by state."""
    begin_ms = course[0]["at_ms"] if course else 0
    at_s = [(line["at_ms"] - begin_ms) / 1000 for line in course]
    lasted_s = at_s[-1] if at_s else 0.0

    def values(name: str) -> list[tuple[float, float]]:
        return [(time_s, line[name]) for time_s, line in zip(at_s, course, strict=True)]

    steps_s = [max(later - earlier, 1e-3) for earlier, later in zip([0.0, *at_s], at_s, strict=False)]
    rates = [
        (time_s, count / step_s) for (time_s, count), step_s in zip(values("arrived"), steps_s, strict=True)
    ]
    records = [
        Line("records that wait", values("waiting"), "red"),
        Line("at replicas", values("running"), "blue"),
    ]
    replicas = [
        Line("wanted", values("wanted"), "ink", "dash", steps=True),
        Line("ready", values("ready"), "green", steps=True),
        Line("starting", values("starting"), "gold", steps=True),
        Line("draining", values("draining"), "faint", steps=True),
    ]
    return Picture(
        title,
        [
            time_figure("Records", records, lasted_s),
            time_figure("Arrivals per second", [Line("", rates, "soft", steps=True)], lasted_s),
            time_figure("Replicas", replicas, lasted_s),
        ],
        columns=1,
    )
