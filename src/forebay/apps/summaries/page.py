"""The HTML page of summaries: per key, a timeline and a card for each window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from forebay.apps.page import read_results
from forebay.apps.summaries.values import Source, Summary
from forebay.pages.axes import Axis
from forebay.pages.render import page
from forebay.pages.svg import Drawing, group, joined, rect
from forebay.pages.units import moment
from forebay.untrusted_text import counted

MAX_WINDOWS = 500
MAX_KEYS = 200
NO_KEY = "(no key)"
HEIGHT = 60.0


def top_summaries(lines: Iterable[bytes]) -> list[str]:
    found = [each for windows in read_summaries(lines).values() for each in windows.values()]
    return [
        f"{each.key or NO_KEY}, {moment(each.start_ms, '%Y-%m-%d %H:%M')}, {counted(each.events, 'event')}: "
        + (" ".join(one.text for one in each.statements) or each.failure)
        for each in sorted(found, key=lambda each: -each.events)
    ]


def read_summaries(lines: Iterable[bytes]) -> dict[str, dict[tuple[int, ...], Summary]]:
    """By key: the last correction of each window, and all running summaries. Other lines are skipped."""
    newest: dict[str, dict[tuple[int, ...], Summary]] = defaultdict(dict)

    def add(answer: Any) -> None:
        if answer["type"] == "summary":
            summary = Summary.from_json(answer)
            rolling = summary.revision if summary.kind == "rolling" else 0
            newest[summary.key][summary.start_ms, summary.end_ms, rolling] = summary

    read_results(lines, add)
    return newest


def summaries_page(lines: Iterable[bytes]) -> str:
    newest = read_summaries(lines)
    names = sorted(newest)
    shown = names[:MAX_KEYS]
    few = f"{len(shown)} of {len(names)} keys; " if len(shown) < len(names) else ""
    windows = counted(sum(map(len, newest.values())), "window")
    return page(
        "summaries.html.j2",
        title="Summaries",
        lead=f"{few}{windows}. Times are UTC. Each statement links to the events that it comes from.",
        keys=[_key(number, name, list(newest[name].values())) for number, name in enumerate(shown)],
    )


def _key(number: int, name: str, summaries: list[Summary]) -> dict[str, Any]:
    summaries.sort(key=lambda each: (each.end_ms, each.start_ms, each.revision))
    shown = summaries[-MAX_WINDOWS:]
    axis = Axis(min(each.start_ms for each in shown), max(each.end_ms for each in shown))
    return {
        "name": name or NO_KEY,
        "older": len(summaries) - len(shown),
        "timeline": _timeline(number, shown, axis),
        "begin_ms": axis.low,
        "end_ms": axis.high,
        "windows": [(each, _sources(each)) for each in shown],
    }


def _sources(summary: Summary) -> dict[str, tuple[int, Source]]:
    found: dict[str, tuple[int, Source]] = {}
    for statement in summary.statements:
        for source in statement.sources:
            found.setdefault(source.id, (len(found) + 1, source))
    return found


def _timeline(number: int, summaries: Sequence[Summary], axis: Axis) -> Drawing:
    most = max(1, *(each.events for each in summaries))
    bars = []
    for window, each in enumerate(summaries):
        left, right = axis.at(each.start_ms), axis.at(each.end_ms)
        height = max(2.0, HEIGHT * each.events / most)
        bar = rect(left, max(right - left - 0.2, 0.2), HEIGHT - height, height, "blue")
        begin, end = (moment(time_ms, "%Y-%m-%d %H:%M") for time_ms in (each.start_ms, each.end_ms))
        title = f"{begin} – {end}: {counted(each.events, 'event')}"
        bars.append(group(0, (bar,), place=f"k{number}w{window}", title=title))
    return Drawing("events per window", HEIGHT, joined(bars), "bare")
