"""The HTML page of topics: a map over time and a card for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.apps.page import (
    Html,
    TimeAxis,
    axis_over,
    card,
    colour,
    element,
    failed_question,
    filter_box,
    link,
    moment,
    page,
    quotes,
    section,
    svg,
)
from forebay.apps.topics.values import UNTIMED_STEP_MS
from forebay.counted import counted
from forebay.json_numbers import read_json

MAX_SHOWN = 300
WIDTH, LEFT, ROW, TOP = 1080.0, 230.0, 26.0, 26.0
NAME_CHARS = 32


@dataclass(slots=True)
class Track:
    name: str
    timed: bool = True
    """If False, a text counts as 1000 ms."""
    born_ms: float | None = None
    last_ms: float = 0
    end_ms: float | None = None
    size: int = 0
    points: list[tuple[float, int]] = field(default_factory=list)
    emerged: list[tuple[float, float]] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    into: str | None = None
    merged: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    labels: list[tuple[float, str, str]] = field(default_factory=list)
    failure: str = ""

    @property
    def label(self) -> str:
        if self.labels:
            return max(self.labels)[1]
        return self.texts[0] if self.texts else f"topic {self.name}"


def topics_page(lines: Iterable[bytes]) -> str:
    """Build the page from JSON lines: results, then dead letters of questions. Other lines are skipped."""
    found = told(lines)
    born = [track for track in found.values() if track.born_ms is not None]
    largest = sorted(born, key=lambda track: -track.size)[:MAX_SHOWN]
    shown = sorted(largest, key=lambda track: (track.born_ms or 0, track.name))
    if not shown:
        return page("Emerging topics", "No topic was born.")
    lead = counted(len(born), "topic")
    if gone := sum(track.into is not None for track in born):
        lead += f"; {gone} of them merged into others"
    if len(born) > len(shown):
        lead += f"; the {len(shown)} largest are shown"
    words = "Width: texts so far. ▲ emerging, ◆ moved, a line leads to the topic that one merged into."
    if not shown[0].timed:
        words += " The texts have no times: the numbers are those of the texts, about."
    return page(
        "Emerging topics",
        lead,
        section(
            "Map over time" if shown[0].timed else "Map over the texts",
            element("p", words, class_="soft"),
            _map(shown),
        ),
        section("Each topic", filter_box(), *(_card(track, found) for track in shown)),
    )


def told(lines: Iterable[bytes]) -> dict[str, Track]:
    found: dict[str, Track] = {}
    for raw in lines:
        try:
            value = read_json(raw)
            failed = failed_question(value, "topic-")
            if failed is not None:
                found[failed[0]["topic"]].failure = failed[1]
                continue
            answer = value["answer"]
            track = found.setdefault(answer["topic"], Track(answer["topic"]))
            if answer.get("time", "") is None:
                track.timed = False
            if answer["kind"] == "label":
                track.labels.append((answer["time_ms"] or 0, answer["label"], answer["about"]))
            else:
                _take(track, answer, found)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _take(track: Track, answer: dict[str, Any], found: dict[str, Track]) -> None:
    at_ms, kind = answer["time_ms"], answer["kind"]
    track.size, track.last_ms = max(track.size, answer["size"]), max(track.last_ms, at_ms)
    track.points.append((at_ms, answer["size"]))
    track.texts = list(dict.fromkeys([*track.texts, *answer["texts"]]))[:6]
    if kind == "born":
        track.born_ms = at_ms
    elif kind == "emerging":
        track.emerged.append((at_ms, answer["score"]))
    elif kind == "moved":
        track.moved.append(at_ms)
    elif kind in ("merged", "folded", "died"):
        track.end_ms = at_ms
    if answer["into"] is not None and kind == "merged":
        track.into = answer["into"]
        found.setdefault(answer["into"], Track(answer["into"])).merged.append(track.name)


def _map(tracks: list[Track]) -> Html:
    last = max(track.last_ms for track in tracks)
    times = [t for track in tracks for t in (track.born_ms or 0, track.last_ms)]
    axis = replace(axis_over(times, LEFT, WIDTH - 30), timed=tracks[0].timed)
    height = TOP + ROW * len(tracks) + 6
    rows = {track.name: TOP + ROW * (at + 0.5) for at, track in enumerate(tracks)}
    most = max(track.size for track in tracks)
    parts = (part for track in tracks for part in _row(track, rows, axis, most, last))
    return svg(WIDTH, height, *axis.lines(TOP, height), *parts, label="Map of the topics over time")


def _row(track: Track, rows: dict[str, float], axis: TimeAxis, most: int, last: float) -> Iterator[Html]:
    middle, fill = rows[track.name], colour(sum(map(ord, track.name)))
    end_ms = track.end_ms or last
    if track.into in rows:
        x = axis.x(end_ms)
        yield element("line", x1=x, x2=x, y1=middle, y2=rows[track.into], stroke=fill, stroke_dasharray="3 3")
    points = sorted(track.points)
    points.append((end_ms, track.size))
    upper = [(axis.x(at), middle - _half(size, most)) for at, size in points]
    lower = [(axis.x(at), middle + _half(size, most)) for at, size in reversed(points)]
    shape = " ".join(f"{x:g},{y:.1f}" for x, y in upper + lower)
    label = track.label
    short = label if len(label) <= NAME_CHARS else label[: NAME_CHARS - 1] + "…"
    marks = [
        element("text", sign, x=axis.x(at), y=middle + 4, text_anchor="middle")
        for sign, times in (("▲", [at for at, _ in track.emerged]), ("◆", track.moved))
        for at in times
    ]
    yield link(
        f"#topic-{track.name}",
        element("title", f"{label}: {counted(track.size, 'text')}, {_span(track)}"),
        element("text", short, x=LEFT - 8, y=middle + 4, text_anchor="end"),
        element("polygon", points=shape, fill=fill, opacity="0.6"),
        *marks,
    )


def _half(size: int, most: int) -> float:
    return 1 + (ROW / 2 - 3) * math.log1p(size) / math.log1p(max(most, 2))


def _card(track: Track, found: dict[str, Track]) -> Html:
    labels = sorted(track.labels)
    merged = [found[name].label for name in track.merged if name in found and found[name].born_ms is not None]
    into = found[track.into].label if track.into in found else None
    emerged = [f"{_when(track, at)} ({score:.0f} nats)" for at, score in track.emerged]
    return card(
        track.label,
        element("p", f"{counted(track.size, 'text')} · {_span(track)}", class_="soft"),
        element("p", element("strong", labels[-1][2], dir="auto")) if labels else None,
        element("p", "before: ", "; ".join(label for _, label, _ in labels[:-1]), class_="soft")
        if len(labels) > 1
        else None,
        element("p", f"The model was asked for a label and did not answer: {track.failure}")
        if track.failure
        else None,
        element("p", "emerging: ", ", ".join(emerged), class_="soft") if emerged else None,
        element("p", "merged into: ", link(f"#topic-{track.into}", into), class_="soft") if into else None,
        element("p", "merged from: ", "; ".join(merged), class_="soft") if merged else None,
        quotes(track.texts),
        id=f"topic-{track.name}",
    )


def _span(track: Track) -> str:
    end = f", until {_when(track, track.end_ms)}" if track.end_ms is not None else ""
    return f"born {_when(track, track.born_ms)}{end}"


def _when(track: Track, time_ms: float | None) -> str:
    if track.timed or time_ms is None:
        return moment(time_ms)
    return f"near text {time_ms / UNTIMED_STEP_MS:,.0f}"
