"""Plots a scaled run: backlog, arrivals and replicas over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_course(path: Path, course: Sequence[Mapping[str, Any]], title: str) -> None:
    """Save `course_figure` as PNG, SVG or PDF; `check_drawing` checks in advance that this works."""
    course_figure(course, title).savefig(path)


def course_figure(course: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Two panels over the same time: waiting and arriving records, and replicas by state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    begin_ms = course[0]["at_ms"] if course else 0
    at_s = [(line["at_ms"] - begin_ms) / 1000 for line in course]
    above.plot(at_s, [line["waiting"] for line in course], label="records that wait", color="tab:red")
    above.plot(at_s, [line["running"] for line in course], label="at replicas", color="tab:blue")
    steps = [max(later - earlier, 1e-3) for earlier, later in zip([0.0, *at_s], at_s, strict=False)]
    rates = [line["arrived"] / step for line, step in zip(course, steps, strict=True)]
    rate_axis = above.twinx()
    rate_axis.step(at_s, rates, where="pre", color="tab:gray", alpha=0.7, label="arrivals per second")
    rate_axis.set_ylabel("arrivals per second")
    rate_axis.set_ylim(bottom=0)
    above.set_ylabel("records")
    above.set_ylim(bottom=0)
    lines = [*above.get_lines(), *rate_axis.get_lines()]
    above.legend(lines, [str(line.get_label()) for line in lines], loc="upper right")
    states = {name: [line[name] for line in course] for name in ("ready", "starting", "draining")}
    below.stackplot(
        at_s,
        *states.values(),
        labels=list(states),
        step="post",
        colors=["tab:green", "tab:orange", "tab:gray"],
    )
    below.step(at_s, [line["wanted"] for line in course], where="post", color="black", label="wanted")
    below.set_ylabel("replicas")
    below.set_xlabel("seconds")
    most = max((sum(values) for values in zip(*states.values(), strict=True)), default=1)
    below.set_yticks(range(max(most, 1) + 2))
    below.legend(loc="upper right")
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(title)
    return figure
