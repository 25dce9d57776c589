"""The HTML page of trends: a timeline and a card for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.apps.page import read_results
from forebay.pages.axes import TimeAxis, range_over
from forebay.pages.charts import BAR, Row, rows_drawing
from forebay.pages.render import page
from forebay.pages.svg import PALETTE, Drawing, circle, rect
from forebay.pages.units import moment
from forebay.untrusted_text import counted

MAX_SHOWN = 300
NAME_CHARS = 26
TITLE = "Viral trends"


@dataclass(slots=True)
class Trend:
    number: int
    run: int = 0
    name: str = ""
    terms: list[str] = field(default_factory=list)
    onset_ms: float = 0
    seen_ms: float = 0
    peak_ms: float = 0
    end_ms: float | None = None
    rate: float = 0.0
    now: float = 0.0
    score: float = 0.0
    rises: int = 1
    base: float = 0.0
    texts: list[str] = field(default_factory=list)
    whys: list[tuple[float, str]] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    into: int | None = None
    failed: tuple[float, str] = (0, "")

    @property
    def failure(self) -> str:
        return "" if self.whys and max(self.whys)[0] > self.failed[0] else self.failed[1]

    @property
    def id(self) -> str:
        return f"trend-{self.number}" + (f"-{self.run}" if self.run else "")

    @property
    def reasons(self) -> list[tuple[float, str]]:
        return sorted(self.whys)

    @property
    def span(self) -> str:
        end = "not yet" if self.end_ms is None else moment(self.end_ms)[11:]
        seen, peak = moment(self.seen_ms)[11:], moment(self.peak_ms)[11:]
        again = "" if self.rises == 1 else f", {self.rises} rises"
        return f"onset {moment(self.onset_ms)}, seen {seen}, peak {peak}, end {end}{again}"

    def add(self, answer: dict[str, Any]) -> None:
        self.name, self.terms = answer["name"], max(self.terms, answer["terms"], key=len)
        # The first event may not be among the lines.
        if answer["kind"] == "born" or not self.seen_ms:
            self.seen_ms, self.base = answer["time_ms"], answer["base_per_s"]
        if answer["rises"] == 1 or not self.onset_ms:
            self.onset_ms = answer["onset_ms"]
        if answer["peak_per_s"] >= self.rate:
            self.rate, self.peak_ms = answer["peak_per_s"], answer["peak_ms"]
        self.now, self.rises = answer["now_per_s"], answer["rises"]
        self.score = max(self.score, answer["score"])
        self.texts = list(dict.fromkeys([*self.texts, *answer["texts"]]))[:8]
        self.end_ms = answer["time_ms"] if answer["kind"] in ("ended", "merged") else None
        if answer["into"] is not None:
            self.into = answer["into"]


def trends_page(lines: Iterable[bytes]) -> str:
    found = read_trends(lines)
    live = sorted((trend for trend in found if trend.into is None), key=lambda trend: -trend.score)
    trends = live[:MAX_SHOWN]
    if not trends:
        lead = "Nothing rose beyond what its own past explains."
        return page("trends.html.j2", title=TITLE, lead=lead, trends=())
    times = [t for trend in trends for t in (trend.onset_ms, trend.seen_ms, trend.end_ms) if t]
    lead = f"{counted(len(live), 'trend')} from {moment(min(times))} to {moment(max(times))} UTC"
    if len(live) > len(trends):
        lead += f"; the {len(trends)} with the most evidence are shown"
    timeline = _timeline(sorted(trends, key=lambda trend: trend.onset_ms))
    return page(
        "trends.html.j2", title=TITLE, lead=lead, script="filter.js", trends=trends, timeline=timeline
    )


def top_trends(lines: Iterable[bytes]) -> list[str]:
    live = [trend for trend in read_trends(lines) if trend.into is None]
    return [
        f"{trend.name}: {trend.rate:.2f} posts/s at {moment(trend.peak_ms)[11:]}"
        + "".join(f" – {words}" for _, words in trend.reasons[-1:])
        for trend in sorted(live, key=lambda trend: -trend.score)
    ]


def read_trends(lines: Iterable[bytes]) -> list[Trend]:
    """A trend that is born twice counts as one of each run, because runs number their trends from 0."""
    found: dict[int, Trend] = {}
    earlier: list[Trend] = []

    def add(answer: Any) -> Trend:
        trend = found.setdefault(answer["trend"], Trend(answer["trend"]))
        if answer["kind"] == "born" and trend.seen_ms:
            earlier.append(trend)
            trend = found[trend.number] = Trend(trend.number, trend.run + 1)
        trend.add(answer)
        if trend.into is not None:
            found.setdefault(trend.into, Trend(trend.into)).merged.append(trend.name)
        return trend

    def answered(trend: Trend, answer: Any) -> None:
        trend.whys.append((answer["time_ms"] or 0, answer["why"]))

    def failed(trend: Trend, time_ms: float, cause: str) -> None:
        trend.failed = max(trend.failed, (time_ms, cause))

    read_results(lines, add, prefix="trend-", answered=answered, failed=failed)
    return [*earlier, *found.values()]


def _timeline(trends: Sequence[Trend]) -> Drawing:
    last_ms = max(trend.end_ms or trend.peak_ms for trend in trends)
    times_ms = [t for trend in trends for t in (trend.onset_ms, trend.end_ms or last_ms)]
    axis = TimeAxis(*range_over(times_ms))
    most = max(trend.rate for trend in trends) or 1.0
    rows = [_row(trend, axis, most, last_ms) for trend in trends]
    return rows_drawing(rows, axis, "time, UTC", "Timeline of the trends")


def _row(trend: Trend, axis: TimeAxis, most: float, last_ms: float) -> Row:
    begin, seen, end = (axis.at(t) for t in (trend.onset_ms, trend.seen_ms, trend.end_ms or last_ms))
    high = 5 + (BAR - 5) * (trend.rate / most) ** 0.5
    colour = PALETTE[trend.number % len(PALETTE)]
    shapes = (
        rect(begin, max(end - begin, 0.2), -high / 2, high, f"{colour} pale"),
        rect(begin, max(seen - begin, 0.1), -high / 2, high, colour),
        circle(axis.at(trend.peak_ms), 0, 3, "ink filled"),
    )
    name = trend.name if len(trend.name) <= NAME_CHARS else trend.name[: NAME_CHARS - 1] + "…"
    title = f"{trend.name}: {trend.span}" + (f" – {trend.reasons[-1][1]}" if trend.whys else "")
    return Row(shapes, name, begin, end, trend.id, title)
