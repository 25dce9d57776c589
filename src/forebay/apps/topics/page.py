"""The HTML page of topics: a map over time and a card for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from forebay.apps.page import read_results
from forebay.apps.topics.values import UNTIMED_STEP_MS
from forebay.pages.axes import Axis, TimeAxis, range_over
from forebay.pages.charts import BAR, Row, row_middle, rows_drawing
from forebay.pages.render import page
from forebay.pages.svg import PALETTE, Colour, Drawing, curve, rule, text
from forebay.pages.units import moment
from forebay.untrusted_text import counted

MAX_SHOWN = 300
NAME_CHARS = 28
TITLE = "Emerging topics"


@dataclass(slots=True)
class TopicRow:
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
    """Time, label, and what the topic is about; the newest last."""
    failure: str = ""

    @property
    def label(self) -> str:
        if self.labels:
            return self.labels[-1][1]
        return self.texts[0] if self.texts else f"topic {self.name}"

    @property
    def colour(self) -> Colour:
        return PALETTE[sum(map(ord, self.name)) % len(PALETTE)]

    @property
    def span(self) -> str:
        end = f", until {self.when(self.end_ms)}" if self.end_ms is not None else ""
        return f"born {self.when(self.born_ms)}{end}"

    def when(self, time_ms: float | None) -> str:
        if self.timed or time_ms is None:
            return moment(time_ms)
        return f"near text {time_ms / UNTIMED_STEP_MS:,.0f}"

    def add(self, answer: dict[str, Any]) -> None:
        at_ms, kind = answer["time_ms"], answer["kind"]
        self.size, self.last_ms = max(self.size, answer["size"]), max(self.last_ms, at_ms)
        self.points.append((at_ms, answer["size"]))
        self.texts = list(dict.fromkeys([*self.texts, *answer["texts"]]))[:6]
        if kind == "born":
            self.born_ms = at_ms
        elif kind == "emerging":
            self.emerged.append((at_ms, answer["score"]))
        elif kind == "moved":
            self.moved.append(at_ms)
        elif kind in ("merged", "folded", "died"):
            self.end_ms = at_ms
        if kind == "merged":
            self.into = answer["into"]


def topics_page(lines: Iterable[bytes]) -> str:
    """Build the page from JSON lines: results, then dead letters of questions. Other lines are skipped."""
    found = read_topics(lines)
    born = [topic for topic in found.values() if topic.born_ms is not None]
    largest = sorted(born, key=lambda topic: -topic.size)[:MAX_SHOWN]
    topics = sorted(largest, key=lambda topic: (topic.born_ms or 0, topic.name))
    if not topics:
        return page("topics.html.j2", title=TITLE, lead="No topic was born.", topics=())
    lead = counted(len(born), "topic")
    if gone := sum(topic.into is not None for topic in born):
        lead += f"; {gone} of them merged into others"
    if len(born) > len(topics):
        lead += f"; the {len(topics)} largest are shown"
    return page(
        "topics.html.j2",
        title=TITLE,
        lead=lead,
        script="filter.js",
        topics=topics,
        timed=topics[0].timed,
        names={topic.name: topic.label for topic in born},
        map=_map(topics),
    )


def top_topics(lines: Iterable[bytes]) -> list[str]:
    """A line for each topic, the largest first."""
    live = [topic for topic in read_topics(lines).values() if topic.into is None]
    largest = sorted(live, key=lambda topic: -topic.size)
    return [f"{topic.label}: {counted(topic.size, 'text')}" for topic in largest]


def read_topics(lines: Iterable[bytes]) -> dict[str, TopicRow]:
    found: dict[str, TopicRow] = {}

    def add(answer: Any) -> None:
        topic = found.setdefault(answer["topic"], TopicRow(answer["topic"]))
        if answer.get("time", "") is None:
            topic.timed = False
        if answer["kind"] == "label":
            topic.labels.append((answer["time_ms"] or 0, answer["label"], answer["about"]))
            topic.labels.sort()
            return
        topic.add(answer)
        if answer["kind"] == "merged" and topic.into is not None:
            found.setdefault(topic.into, TopicRow(topic.into)).merged.append(topic.name)

    def fail(about: Any, cause: str) -> None:
        found[about["topic"]].failure = cause

    read_results(lines, add, fail, "topic-")
    return found


def _map(topics: Sequence[TopicRow]) -> Drawing:
    last_ms = max(topic.last_ms for topic in topics)
    low, high = range_over([t for topic in topics for t in (topic.born_ms or 0, topic.last_ms)])
    timed = topics[0].timed
    axis, name = (TimeAxis(low, high), "time, UTC") if timed else (_TextAxis(low, high), "texts so far")
    most = max(topic.size for topic in topics)
    numbers = {topic.name: number for number, topic in enumerate(topics)}
    rows = [_row(topic, axis, most, last_ms) for topic in topics]
    merged = list(_merges(topics, numbers, axis))
    return rows_drawing(rows, axis, name, "Map of the topics over time", behind=merged)


@dataclass(frozen=True, slots=True)
class _TextAxis(Axis):
    """An axis of times in milliseconds, labelled with the numbers of texts."""

    def ticks(self) -> list[tuple[float, str]]:
        numbers = Axis(self.low / UNTIMED_STEP_MS, self.high / UNTIMED_STEP_MS).ticks()
        return [(number * UNTIMED_STEP_MS, words) for number, words in numbers]


def _merges(topics: Sequence[TopicRow], numbers: dict[str, int], axis: Axis) -> Iterator[Markup]:
    """A line from each topic that was merged to the one that it became a part of."""
    for number, topic in enumerate(topics):
        if topic.into in numbers and topic.end_ms is not None:
            x = axis.at(topic.end_ms)
            y = row_middle(number), row_middle(numbers[topic.into])
            yield rule(x, x, *y, f"link {topic.colour}")


def _row(topic: TopicRow, axis: Axis, most: int, last_ms: float) -> Row:
    end_ms = topic.end_ms or last_ms
    points = [*sorted(topic.points), (end_ms, topic.size)]
    upper = [(axis.at(at_ms), -_half(size, most)) for at_ms, size in points]
    lower = [(x, -y) for x, y in reversed(upper)]
    signs = [
        text(axis.at(at_ms), 4, sign, "middle")
        for sign, times_ms in (("▲", [at_ms for at_ms, _ in topic.emerged]), ("◆", topic.moved))
        for at_ms in times_ms
    ]
    label = topic.label
    short = label if len(label) <= NAME_CHARS else label[: NAME_CHARS - 1] + "…"
    title = f"{label}: {counted(topic.size, 'text')}, {topic.span}"
    area = curve(upper + lower, f"{topic.colour} area")
    return Row((area, *signs), short, upper[0][0], upper[-1][0], f"topic-{topic.name}", title)


def _half(size: int, most: int) -> float:
    return 1 + (BAR / 2 - 1) * math.log1p(size) / math.log1p(max(most, 2))
