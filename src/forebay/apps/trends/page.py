"""The HTML page of trends: a timeline and a card for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
    joined,
    link,
    moment,
    page,
    quotes,
    section,
    svg,
    tags,
)
from forebay.counted import counted
from forebay.json_numbers import read_json

MAX_SHOWN = 300
WIDTH, LEFT, ROW, TOP = 1080.0, 190.0, 22.0, 26.0
NAME_CHARS = 26
WORDS = "From onset to end; dark until the trend was seen; the dot is its peak; the height is its peak rate."


@dataclass(slots=True)
class Line:
    number: int
    name: str = ""
    terms: list[str] = field(default_factory=list)
    onset_ms: float = 0
    seen_ms: float = 0
    peak_ms: float = 0
    end_ms: float | None = None
    rate: float = 0.0
    base: float = 0.0
    texts: list[str] = field(default_factory=list)
    whys: list[tuple[float, str]] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    into: int | None = None
    failure: str = ""


def trends_page(lines: Iterable[bytes]) -> str:
    """Build the page from JSON lines: results, then dead letters of questions. Other lines are skipped."""
    found = list(told(lines).values())
    live = sorted((line for line in found if line.into is None), key=lambda line: -line.rate)
    shown = sorted(live[:MAX_SHOWN], key=lambda line: line.onset_ms)
    if not shown:
        return page("Viral trends", "Nothing rose beyond what its own past explains.")
    times = [t for line in shown for t in (line.onset_ms, line.seen_ms, line.end_ms) if t]
    lead = f"{counted(len(live), 'trend')} from {moment(min(times))} to {moment(max(times))} UTC"
    if len(live) > len(shown):
        lead += f"; the {len(shown)} with the highest peaks are shown"
    return page(
        "Viral trends",
        lead,
        section(
            "Timeline",
            element("p", WORDS, class_="soft"),
            _timeline(shown),
        ),
        section("Each trend", filter_box(), *(_card(line) for line in shown)),
    )  # fmt: skip


def told(lines: Iterable[bytes]) -> dict[int, Line]:
    found: dict[int, Line] = {}
    for raw in lines:
        try:
            value = read_json(raw)
            failed = failed_question(value, "trend-")
            if failed is not None:
                found[failed[0]["trend"]].failure = failed[1]
                continue
            answer = value["answer"]
            line = found.setdefault(answer["trend"], Line(answer["trend"]))
            if answer["kind"] == "why":
                line.whys.append((answer["time_ms"] or 0, answer["why"]))
            else:
                _take(line, answer, found)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _take(line: Line, answer: dict[str, Any], found: dict[int, Line]) -> None:
    line.name, line.terms = answer["name"], max(line.terms, answer["terms"], key=len)
    line.onset_ms, line.peak_ms = answer["onset_ms"], answer["peak_ms"]
    if answer["kind"] == "born":
        line.seen_ms, line.base = answer["time_ms"], answer["base_per_s"]
    line.rate = max(line.rate, answer["rate_per_s"])
    line.texts = list(dict.fromkeys([*line.texts, *answer["texts"]]))[:8]
    if answer["kind"] in ("ended", "merged"):
        line.end_ms = answer["time_ms"]
    if answer["into"] is not None:
        line.into = answer["into"]
        found.setdefault(line.into, Line(line.into)).merged.append(line.name)


def _timeline(lines: list[Line]) -> Html:
    last = max(line.end_ms or line.peak_ms for line in lines)
    axis = axis_over([t for line in lines for t in (line.onset_ms, line.end_ms or last)], LEFT, WIDTH - 30)
    height = TOP + ROW * len(lines) + 6
    most = max(line.rate for line in lines) or 1.0
    rows = (part for at, line in enumerate(lines) for part in _row(line, TOP + ROW * at, axis, most, last))
    return svg(WIDTH, height, *axis.lines(TOP, height), *rows, label="Timeline of the trends")


def _row(line: Line, top: float, axis: TimeAxis, most: float, last: float) -> Iterator[Html]:
    begin, seen, end = axis.x(line.onset_ms), axis.x(line.seen_ms), axis.x(line.end_ms or last)
    high = 5 + (ROW - 9) * (line.rate / most) ** 0.5
    middle, fill = top + ROW / 2, colour(line.number)
    name = line.name if len(line.name) <= NAME_CHARS else line.name[: NAME_CHARS - 1] + "…"
    said = f"{line.name}: {_span(line)}" + (f" – {line.whys[-1][1]}" if line.whys else "")
    bar = {"y": round(middle - high / 2, 1), "height": round(high, 1), "rx": 2, "fill": fill}
    yield link(
        f"#trend-{line.number}",
        element("title", said),
        element("text", name, x=LEFT - 8, y=middle + 4, text_anchor="end"),
        element("rect", x=begin, width=max(end - begin, 2), opacity="0.55", **bar),
        element("rect", x=begin, width=max(seen - begin, 1), **bar),
        element("circle", cx=axis.x(line.peak_ms), cy=middle, r=3, fill="var(--ink)"),
    )


def _card(line: Line) -> Html:
    whys = sorted(line.whys)
    more = [f"{moment(at)[11:]}: {said}" for at, said in whys[:-1]]
    times = f"{line.rate:.2f} posts/s at the peak, {line.base:.2f} before"
    return card(
        line.name,
        element("p", f"{_span(line)} · {times}", class_="soft"),
        element("p", element("strong", whys[-1][1], dir="auto")) if whys else None,
        joined(element("p", words, class_="soft", dir="auto") for words in more) if more else None,
        element("p", f"The model was asked why and did not answer: {line.failure}") if line.failure else None,
        tags(line.terms),
        element("p", "merged from: ", ", ".join(line.merged), class_="soft") if line.merged else None,
        quotes(line.texts),
        id=f"trend-{line.number}",
    )


def _span(line: Line) -> str:
    end = "not yet" if line.end_ms is None else moment(line.end_ms)[11:]
    seen, peak = moment(line.seen_ms)[11:], moment(line.peak_ms)[11:]
    return f"onset {moment(line.onset_ms)}, seen {seen}, peak {peak}, end {end}"
