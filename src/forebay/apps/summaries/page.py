"""The HTML page of summaries: per key, a timeline and a card for each window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from forebay.apps.page import Html, card, element, joined, link, moment, page, section, svg
from forebay.apps.summaries.values import Statement, Summary
from forebay.counted import counted
from forebay.json_numbers import read_json

MAX_WINDOWS = 500
MAX_KEYS = 200
NO_KEY = "(no key)"
WIDTH, HEIGHT = 1080.0, 60.0


def summaries_page(lines: Iterable[bytes]) -> str:
    """Build the page from the JSON lines of `forebay run summary`; other lines are skipped.

    Shows the last correction of a window, and the newest of the running summaries.
    """
    newest: dict[str, dict[tuple[int, ...], Summary]] = defaultdict(dict)
    for line in lines:
        summary = _summary(line)
        if summary is not None:
            rolling = summary.revision if summary.kind == "rolling" else 0
            newest[summary.key][summary.start_ms, summary.end_ms, rolling] = summary
    keys = sorted(newest)
    shown = keys[:MAX_KEYS]
    few = f"{len(shown)} of {len(keys)} keys; " if len(shown) < len(keys) else ""
    windows = counted(sum(map(len, newest.values())), "window")
    return page(
        "Summaries",
        f"{few}{windows}. Times are UTC. Each statement links to the events that it comes from.",
        element("nav", *(joined((link(f"#k{n}", key or NO_KEY), " ")) for n, key in enumerate(shown))),
        *(_key(n, key, list(newest[key].values())) for n, key in enumerate(shown)),
    )


def _summary(line: bytes) -> Summary | None:
    try:
        answer = read_json(line)["answer"]
        return Summary.from_json(answer) if answer["type"] == "summary" else None
    except (ValueError, KeyError, TypeError):
        return None


def _key(n: int, key: str, summaries: list[Summary]) -> Html:
    summaries.sort(key=lambda each: (each.end_ms, each.start_ms, each.revision))
    older = len(summaries) - MAX_WINDOWS
    summaries = summaries[-MAX_WINDOWS:]
    return section(
        key or NO_KEY,
        element("p", f"Not shown: {counted(older, 'older window')}.", class_="soft") if older > 0 else None,
        _timeline(n, summaries),
        *(_window(f"k{n}w{m}", summary) for m, summary in enumerate(summaries)),
        id=f"k{n}",
    )


def _timeline(n: int, summaries: list[Summary]) -> Html:
    begin = min(each.start_ms for each in summaries)
    span = max(1, max(each.end_ms for each in summaries) - begin)
    most = max(1, *(each.events for each in summaries))
    bars = []
    for m, each in enumerate(summaries):
        left = WIDTH * (each.start_ms - begin) / span
        width = max(2.0, WIDTH * (each.end_ms - each.start_ms) / span - 2)
        height = max(2.0, (HEIGHT - 6) * each.events / most)
        bar = {"x": round(left, 1), "y": round(HEIGHT - 2 - height, 1), "width": round(width, 1)}
        title = element("title", f"{_span(each)}: {counted(each.events, 'event')}")
        rect = element("rect", height=round(height, 1), fill="var(--a)", **bar)
        bars.append(link(f"#k{n}w{m}", title, rect))
    return joined(
        (
            svg(WIDTH, HEIGHT, *bars, label="events per window"),
            element("p", f"{_time(begin)} – {_time(begin + span)}", class_="soft"),
        )
    )


def _window(id: str, summary: Summary) -> Html:
    events: list[Html] = []
    numbers: dict[str, int] = {}
    said = [
        element("li", element("bdi", each.text), " ", _cites(id, each, numbers, events))
        for each in summary.statements
    ]
    silent = not said and summary.failed < summary.events
    # A link to an event inside the details opens them in browsers.
    sources = element("summary", counted(len(events), "source event"))
    return card(
        _span(summary),
        element("p", element("strong", _failed(summary))) if summary.failed or summary.failures else None,
        element("ol", *said) if said else None,
        element("p", "Nothing was said.", class_="soft") if silent else None,
        element("p", _note(summary), class_="soft"),
        element("details", sources, element("ol", *events)) if events else None,
        id=id,
    )


def _cites(id: str, statement: Statement, numbers: dict[str, int], events: list[Html]) -> Html:
    links: list[object] = []
    for source in statement.sources:
        number = numbers.setdefault(source.id, len(numbers) + 1)
        if number == len(events) + 1:
            words = element("bdi", source.text, title=source.id)
            events.append(element("li", _time(source.time_ms), " ", words, id=f"{id}e{number}"))
        links += [", ", link(f"#{id}e{number}", number)]
    more = f" and {statement.more:,} more" if statement.more else None
    return element("small", "[", *links[1:], more, "]")


def _failed(summary: Summary) -> str:
    failed, events = summary.failed, counted(summary.events, "event")
    why = f" {counted(sum(summary.failures.values()), 'failed call')}, the last: {summary.failure}"
    why = why if summary.failures else ""
    if not failed:
        return f"Some statements could not be merged.{why}"
    if failed < summary.events:
        return f"Summarised in part: the calls for {failed:,} of {events} failed.{why}"
    return f"Could not be summarised: the calls for all of its events ({failed:,}) failed.{why}"


def _note(summary: Summary) -> str:
    parts = [counted(summary.events, "event")]
    for count, words in (
        (summary.left_out, "left out by sampling, over the budget"),
        (summary.failed, "whose call failed"),
        (summary.late, "late"),
    ):
        if count:
            parts.append(f"{count:,} {words}")
    if summary.cut:
        parts.append(f"{counted(summary.cut, 'statement')} over the summary's budget")
    if summary.revision and summary.kind != "rolling":
        parts.append(f"corrected, revision {summary.revision}")
    tokens = summary.prompt_tokens + summary.completion_tokens
    parts.append(f"{counted(summary.calls, 'call')}, {counted(tokens, 'token')}")
    return ", ".join(parts)


def _span(summary: Summary) -> str:
    begin, end = _time(summary.start_ms), _time(summary.end_ms)
    if begin[:10] == end[:10]:
        end = end[11:]
    return f"{begin} – {end}"


def _time(time_ms: int) -> str:
    return moment(time_ms, seconds=False)
