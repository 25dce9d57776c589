"""Summaries as one HTML page that needs nothing else: no network, no scripts."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterable, Iterator

import orjson

from forebay.apps.summaries.values import Summary, moment
from forebay.untrusted_text import replace_controls

MAX_WINDOWS = 500
"""Windows shown of each key: the newest."""
MAX_KEYS = 200

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem 1.5rem 4rem;
  color: #1c2430; background: #fbfaf7; }
h1 { font-size: 1.5rem; } h2 { margin: 2.5rem 0 .5rem; border-bottom: 2px solid #d9d4c7; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; } a { color: #0b5e8a; text-decoration: none; }
a:hover { text-decoration: underline; } :target { background: #fff1b8; }
.note { color: #6a6f78; font-size: .85rem; } .warn { color: #9a3412; }
ol.said { margin: .25rem 0; padding-left: 1.4rem; } ol.said li { margin: .3rem 0; }
.cites { font-size: .8rem; } details { margin: .25rem 0; }
details ol { font-size: .85rem; color: #3b4350; overflow-wrap: anywhere; }
svg { width: 100%; height: 60px; background: #f1eee5; border-radius: 4px; }
svg rect { fill: #3c7fa6; } svg a:hover rect { fill: #d97706; }
.ends { display: flex; justify-content: space-between; margin: 0; }
nav a { margin-right: 1rem; white-space: nowrap; }
@media (prefers-color-scheme: dark) { body { color: #e3e1da; background: #17191d; } a { color: #7cc4ea; }
  h2 { border-color: #3a3d44; } svg { background: #22252b; } :target { background: #5b4a10; }
  details ol { color: #b9bcc3; } }
"""


def page(lines: Iterable[bytes]) -> str:
    """The page of the results of `forebay run summary`, as JSON lines; others among them are passed over.

    Of a window that was corrected the last summary is shown, of a running summary the newest ones.
    """
    newest: dict[str, dict[tuple[int, ...], Summary]] = defaultdict(dict)
    for line in lines:
        summary = _summary(line)
        if summary is not None:
            rolling = summary.revision if summary.kind == "rolling" else 0
            newest[summary.key][summary.start_ms, summary.end_ms, rolling] = summary
    keys = sorted(newest)
    shown = keys[:MAX_KEYS]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Even if something slipped through the escaping, a browser would not run or fetch it.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>Summaries</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Summaries</h1>\n"
    )
    nav = "".join(f'<a href="#k{n}">{_text(key) or "(no key)"}</a> ' for n, key in enumerate(shown))
    note = f"{len(shown)} of {len(keys)} keys; " if len(shown) < len(keys) else ""
    windows = sum(map(len, newest.values()))
    body = "\n".join(part for n, key in enumerate(shown) for part in _key(n, key, list(newest[key].values())))
    return (
        f'{head}<p class="note">{note}{_counted(windows, "window")}. Times are UTC. Each statement links to '
        f"the events that it comes from.</p>\n<nav>{nav}</nav>\n{body}\n</body>\n</html>\n"
    )


def _summary(line: bytes) -> Summary | None:
    try:
        answer = orjson.loads(line)["answer"]
        return Summary.from_json(answer) if answer["type"] == "summary" else None
    except (ValueError, KeyError, TypeError):
        return None


def _key(n: int, key: str, summaries: list[Summary]) -> Iterator[str]:
    summaries.sort(key=lambda each: (each.end_ms, each.start_ms, each.revision))
    left_out = len(summaries) - MAX_WINDOWS
    summaries = summaries[-MAX_WINDOWS:]
    yield f'<section>\n<h2 id="k{n}">{_text(key) or "(no key)"}</h2>'
    if left_out > 0:
        yield f'<p class="note">Not shown: {_counted(left_out, "older window")}.</p>'
    yield _timeline(n, summaries)
    for m, summary in enumerate(summaries):
        yield from _window(f"k{n}w{m}", summary)
    yield "</section>"


def _timeline(n: int, summaries: list[Summary]) -> str:
    """A bar per window over its time, as high as it has events."""
    begin = min(each.start_ms for each in summaries)
    span = max(1, max(each.end_ms for each in summaries) - begin)
    most = max(1, *(each.events for each in summaries))
    bars = []
    for m, each in enumerate(summaries):
        left = 1000 * (each.start_ms - begin) / span
        width = max(2.0, 1000 * (each.end_ms - each.start_ms) / span - 2)
        height = max(2.0, 54 * each.events / most)
        bars.append(
            f'<a href="#k{n}w{m}"><rect x="{left:.1f}" y="{58 - height:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" opacity="0.8">'
            f"<title>{_span(each)}: {_counted(each.events, 'event')}</title></rect></a>"
        )
    return (
        f'<svg viewBox="0 0 1000 60" preserveAspectRatio="none" role="img" '
        f'aria-label="events per window">{"".join(bars)}</svg>\n'
        f'<p class="note ends"><span>{_time(begin)}</span><span>{_time(begin + span)}</span></p>'
    )


def _window(id: str, summary: Summary) -> Iterator[str]:
    yield f'<article id="{id}">\n<h3>{_span(summary)}</h3>'
    said: list[str] = []
    events: list[str] = []
    numbers: dict[str, int] = {}
    for statement in summary.statements:
        links = []
        for source in statement.sources:
            number = numbers.setdefault(source.id, len(numbers) + 1)
            if number == len(events) + 1:
                events.append(
                    f'<li id="{id}e{number}">{_time(source.time_ms)} '
                    f'<bdi title="{_text(source.id)}">{_text(source.text)}</bdi></li>'
                )
            links.append(f'<a href="#{id}e{number}">{number}</a>')
        more = f" and {statement.more:,} more" if statement.more else ""
        cites = f'<span class="cites">[{", ".join(links)}{more}]</span>'
        said.append(f"<li><bdi>{_text(statement.text)}</bdi> {cites}</li>")
    if summary.failed:
        yield f'<p class="note warn">{_failed(summary)}</p>'
    if said:
        yield f'<ol class="said">{"".join(said)}</ol>'
    elif summary.failed < summary.events:
        yield '<p class="note">Nothing was said.</p>'
    yield f'<p class="note">{_note(summary)}</p>'
    if events:
        # A link to an event within opens it: browsers unfold what holds the target.
        sources = _counted(len(events), "source event")
        yield f"<details><summary>{sources}</summary><ol>{''.join(events)}</ol></details>"
    yield "</article>"


def _failed(summary: Summary) -> str:
    failed, events = summary.failed, _counted(summary.events, "event")
    if failed < summary.events:
        return f"Summarised in part: the calls for {failed:,} of {events} failed."
    return f"Could not be summarised: the calls for all of its events ({failed:,}) failed."


def _note(summary: Summary) -> str:
    parts = [_counted(summary.events, "event")]
    for name, words in (
        ("left_out", "left out by sampling, over the budget"),
        ("failed", "whose call failed"),
        ("late", "late"),
    ):
        if getattr(summary, name):
            parts.append(f'<span class="warn">{getattr(summary, name):,} {words}</span>')
    if summary.cut:
        parts.append(f"{_counted(summary.cut, 'statement')} over the summary's budget")
    if summary.revision and summary.kind != "rolling":
        parts.append(f"corrected, revision {summary.revision}")
    tokens = summary.prompt_tokens + summary.completion_tokens
    parts.append(f"{_counted(summary.calls, 'call')}, {_counted(tokens, 'token')}")
    return ", ".join(parts)


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _span(summary: Summary) -> str:
    begin, end = _time(summary.start_ms), _time(summary.end_ms)
    if begin[:10] == end[:10]:
        end = end[11:]
    return f"{begin} – {end}"


def _time(time_ms: int) -> str:
    return f"{moment(time_ms):%Y-%m-%d %H:%M}"


def _text(text: str) -> str:
    """As text on the page: escaped, and without what would steer the browser or turn its direction."""
    return html.escape(replace_controls(text))
