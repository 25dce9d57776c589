"""The HTML page of topics: the most active ones as streams over time, and a list of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forebay.apps.page import read_results
from forebay.apps.topics.values import UNTIMED_STEP_MS, phrase_of
from forebay.pages.axes import Axis, TimeAxis, range_over
from forebay.pages.charts import BAR, Row, rows_drawing
from forebay.pages.render import page
from forebay.pages.svg import PALETTE, Colour, Drawing, curve, text
from forebay.pages.units import moment
from forebay.untrusted_text import counted

MAX_MAPPED = 40
MAX_LISTED = 2000
NAME_CHARS = 28
STEPS = 80
TITLE = "Emerging topics"


@dataclass(slots=True)
class TopicRow:
    name: str
    run: int = 0
    timed: bool = True
    born_ms: float | None = None
    last_ms: float = 0
    end_ms: float | None = None
    size: int = 0
    points: list[tuple[float, int]] = field(default_factory=list)
    emerged: list[tuple[float, float]] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    into: TopicRow | None = None
    merged: list[TopicRow] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    labels: list[tuple[float, str, str]] = field(default_factory=list)
    failed: tuple[float, str] = (0, "")

    @property
    def failure(self) -> str:
        return "" if self.labels and self.labels[-1][0] > self.failed[0] else self.failed[1]

    @property
    def id(self) -> str:
        return f"topic-{self.name}" + (f"-{self.run}" if self.run else "")

    @property
    def label(self) -> str:
        words = [label for _, label, _ in self.labels if any(map(str.isalnum, label))]
        return words[-1] if words else phrase_of(self.texts) or f"topic {self.name}"

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

    def texts_in(self, low_ms: float, high_ms: float) -> float:
        """How many texts arrived in the period, estimated from the reported sizes."""
        before, after = self.sizes_at([low_ms, high_ms])
        return float(after - before)

    def sizes_at(self, times_ms: Any) -> Any:
        found = sorted(self.points)
        # Times can go back while the topic grows.
        sizes = np.maximum.accumulate([size for _, size in found])
        return np.interp(times_ms, [at_ms for at_ms, _ in found], sizes, left=0)

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
        elif kind in ("merged", "died"):
            self.end_ms = at_ms


def topics_page(lines: Iterable[bytes]) -> str:
    born = [topic for topic in read_topics(lines) if topic.born_ms is not None]
    if not born:
        return page("topics.html.j2", title=TITLE, lead="No topic was born.", topics=())
    low, high = range_over([t for topic in born for t in (topic.born_ms or 0, topic.last_ms)])
    ordered = sorted(born, key=lambda topic: (topic.into is not None, -topic.texts_in(low, high)))
    shown = ordered[:MAX_LISTED]
    lead = counted(len(born), "topic")
    if gone := sum(topic.into is not None for topic in born):
        lead += f"; {gone} of them merged into others"
    if len(born) > len(shown):
        lead += f"; the {len(shown):,} most active are shown"
    mapped = [topic for topic in shown[:MAX_MAPPED] if topic.into is None] or shown[:1]
    return page(
        "topics.html.j2",
        title=TITLE,
        lead=lead,
        script="filter.js",
        topics=shown,
        mapped=len(mapped),
        timed=born[0].timed,
        map=_map(mapped, low, high),
    )


def top_topics(lines: Iterable[bytes]) -> list[str]:
    live = [topic for topic in read_topics(lines) if topic.into is None and topic.born_ms is not None]
    largest = sorted(live, key=lambda topic: -topic.size)
    return [f"{topic.label}: {counted(topic.size, 'text')}" for topic in largest]


def read_topics(lines: Iterable[bytes]) -> list[TopicRow]:
    """A topic that is born twice counts as one of each run, because runs number their topics from 0."""
    found: dict[str, TopicRow] = {}
    earlier: list[TopicRow] = []

    def add(answer: Any) -> TopicRow:
        topic = found.setdefault(answer["topic"], TopicRow(answer["topic"]))
        if answer["kind"] == "folded":  # A candidate.
            return topic
        if answer["kind"] == "born" and topic.born_ms is not None:
            earlier.append(topic)
            topic = found[topic.name] = TopicRow(topic.name, topic.run + 1)
        topic.timed = answer.get("time", "") is not None
        topic.add(answer)
        if answer["kind"] == "merged":
            topic.into = found.setdefault(answer["into"], TopicRow(answer["into"]))
            topic.into.merged.append(topic)
        return topic

    def answered(topic: TopicRow, answer: Any) -> None:
        topic.labels.append((answer["time_ms"] or 0, answer["label"], answer["about"]))
        topic.labels.sort()

    def failed(topic: TopicRow, time_ms: float, cause: str) -> None:
        topic.failed = max(topic.failed, (time_ms, cause))

    read_results(lines, add, prefix="topic-", answered=answered, failed=failed)
    return [*earlier, *found.values()]


def _map(topics: Sequence[TopicRow], low: float, high: float) -> Drawing:
    axis, name = (
        (TimeAxis(low, high), "time, UTC") if topics[0].timed else (_TextAxis(low, high), "texts so far")
    )
    times_ms = np.linspace(low, high, STEPS + 1)
    rates = [np.diff(topic.sizes_at(times_ms), prepend=0) for topic in topics]
    most = max(float(each.max()) for each in rates) or 1.0
    rows = [_row(topic, axis, times_ms, each / most) for topic, each in zip(topics, rates, strict=True)]
    return rows_drawing(rows, axis, name, "The most active topics over time")


@dataclass(frozen=True, slots=True)
class _TextAxis(Axis):
    def ticks(self) -> list[tuple[float, str]]:
        numbers = Axis(self.low / UNTIMED_STEP_MS, self.high / UNTIMED_STEP_MS).ticks()
        return [(number * UNTIMED_STEP_MS, words) for number, words in numbers]


def _row(topic: TopicRow, axis: Axis, times_ms: Any, shares: Any) -> Row:
    end_ms, step_ms = topic.end_ms or times_ms[-1], times_ms[1] - times_ms[0]
    upper = [
        (axis.at(at_ms), -0.5 - (BAR / 2 - 1) * max(float(share), 0.0) ** 0.5)
        for at_ms, share in zip(times_ms, shares, strict=True)
        if (topic.born_ms or 0) - step_ms < at_ms <= end_ms
    ] or [(axis.at(end_ms), -1.0)]
    signs = [
        text(axis.at(at_ms), 4, sign, "middle")
        for sign, times in (("▲", [at_ms for at_ms, _ in topic.emerged]), ("◆", topic.moved))
        for at_ms in times
    ]
    label = topic.label
    short = label if len(label) <= NAME_CHARS else label[: NAME_CHARS - 1] + "…"
    title = f"{label}: {counted(topic.size, 'text')}, {topic.span}"
    area = curve(upper + [(x, -y) for x, y in reversed(upper)], f"{topic.colour} area")
    return Row((area, *signs), short, upper[0][0], upper[-1][0], topic.id, title)
