"""Self-contained HTML pages of results, in which no text can become markup.

`element` escapes everything that is not `Html`. As a second line of defence, the content security policy
allows only the page's own style and one script, named by hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from html import escape
from typing import Any
from urllib.parse import urlsplit

from forebay.json_numbers import read_json
from forebay.untrusted_text import replace_controls

NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
FORBIDDEN_TAGS = frozenset(("script", "style", "iframe", "object", "embed", "base", "meta", "link", "form"))
URL_ATTRIBUTES = frozenset(("href", "src", "action", "formaction", "xlink:href", "srcdoc", "style"))
VOID_TAGS = frozenset(("br", "hr", "img", "input", "wbr"))
PATH_COMMANDS = frozenset("MLHVZmlhvz")
MAX_TEXT_CHARS = 2000
MAX_DETAIL_CHARS = 300

STYLE = """
:root{color-scheme:light dark;--ink:#1c2530;--soft:#5d6b7a;--line:#d9e0e6;--back:#fff;--card:#f6f8fa;
--a:#0b6e99;--b:#c4553a;--c:#6a8f3c;--d:#8a5ea8;--e:#b58a1b}
@media(prefers-color-scheme:dark){:root{--ink:#e3e9ef;--soft:#9aa8b5;--line:#35414d;--back:#12181f;
--card:#1a222b;--a:#58b4dd;--b:#e98a70;--c:#a3c777;--d:#c09ada;--e:#dfba56}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:24px 20px 60px;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif,"Segoe UI Emoji","Noto Color Emoji"}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:34px 0 8px}h3{font-size:15px;margin:0 0 2px}
p{margin:4px 0}.lead,.soft,small{color:var(--soft)}
a{color:var(--a)}ul{margin:4px 0;padding-left:20px}blockquote{margin:4px 0;padding:2px 10px;
border-left:3px solid var(--line);color:var(--soft);overflow-wrap:anywhere}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;margin:10px 0;
overflow-wrap:anywhere}
.card:target{border-color:var(--a)}.tag{display:inline-block;border:1px solid var(--line);
border-radius:10px;padding:0 8px;margin:0 4px 2px 0;font-size:13px;color:var(--soft)}
.scroll{overflow-x:auto}svg{display:block;max-width:100%;height:auto}svg text{fill:var(--ink);
font:12px system-ui,-apple-system,"Segoe UI",sans-serif,"Segoe UI Emoji","Noto Color Emoji"}
svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line)}
svg a:hover *{opacity:.75}input.filter{font:inherit;width:100%;max-width:420px;padding:6px 10px;margin:8px 0;
color:inherit;background:var(--card);border:1px solid var(--line);border-radius:6px}
""".strip()

# Typing into an `input.filter` hides the `.card`s without that text.
SCRIPT = """
for(const box of document.querySelectorAll("input.filter"))box.addEventListener("input",()=>{
const word=box.value.toLowerCase();for(const one of document.querySelectorAll(".card"))
one.hidden=!one.textContent.toLowerCase().includes(word)})
""".strip()

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {}; base-uri 'none'; form-action 'none'"


class Html(str):
    """Markup. Only this module creates it."""

    __slots__ = ()


Child = object
"""`Html` is inserted as it is, None is skipped, anything else becomes escaped text."""


def text(value: object) -> Html:
    """Escape `value`, replace control characters, and truncate it to `MAX_TEXT_CHARS`."""
    words = str(value)
    if len(words) > MAX_TEXT_CHARS:
        words = words[: MAX_TEXT_CHARS - 1] + "…"
    return Html(escape(replace_controls(words), quote=True))


def element(tag: str, *children: Child, **attributes: object) -> Html:
    """`<tag attribute="…">children</tag>`.

    Attributes that are None are left out; `class_` becomes `class`, `stroke_width` becomes `stroke-width`.
    Raises `ValueError` for a tag or attribute that could run or load something (use `link` for addresses).
    """
    if not NAME.fullmatch(tag) or tag.lower() in FORBIDDEN_TAGS:
        raise ValueError(f"no element {tag!r} on a page")
    named = []
    for given, value in attributes.items():
        name = given.rstrip("_").replace("_", "-")
        if not NAME.fullmatch(name) or name.lower().startswith("on") or name.lower() in URL_ATTRIBUTES:
            raise ValueError(f"no attribute {name!r} on a page")
        if value is not None:
            named.append(f' {name}="{text(value)}"')
    opened = f"<{tag}{''.join(named)}>"
    return Html(opened) if tag in VOID_TAGS else Html(f"{opened}{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Html:
    return Html(
        "".join(child if isinstance(child, Html) else text(child) for child in children if child is not None)
    )


def link(address: str, *children: Child) -> Html:
    """A link to `#place` on this page or to an http(s) address; for any other address, just the children."""
    inner = joined(children)
    if not address.startswith("#"):
        try:
            parts = urlsplit(address)
        except ValueError:
            return inner
        if parts.scheme.lower() not in ("http", "https") or not parts.netloc:
            return inner
    return Html(f'<a href="{text(address)}" rel="noreferrer noopener">{inner}</a>')


def section(title: str, *children: Child, id: str | None = None) -> Html:
    return element("section", element("h2", title), *children, id=id)


def card(title: Child, *children: Child, id: str | None = None) -> Html:
    """One item of a list that a `filter_box` can hide."""
    return element("div", element("h3", title), *children, class_="card", id=id)


def quotes(texts: Iterable[str]) -> Html:
    return joined(element("blockquote", each, dir="auto") for each in texts)


def tags(words: Iterable[str]) -> Html:
    return joined(element("span", word, class_="tag", dir="auto") for word in words)


def filter_box(words: str = "Show only what holds …") -> Html:
    return element("input", class_="filter", type="search", placeholder=words, aria_label=words)


def svg(width: float, height: float, *children: Child, label: str) -> Html:
    drawing = element(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        role="img",
        aria_label=label,
    )
    return element("div", drawing, class_="scroll")


def path(steps: Iterable[tuple[str, tuple[float, ...]]], **attributes: object) -> Html:
    """An SVG path from commands such as `("M", (0, 10))`."""
    parts = []
    for command, numbers in steps:
        if command not in PATH_COMMANDS:
            raise ValueError(f"no command {command!r} of a path")
        parts.append(command + " ".join(f"{number:.1f}".removesuffix(".0") for number in numbers))
    # Contains only letters and numbers, so nothing in it can end the attribute.
    return Html(element("path", **attributes).replace("<path", f'<path d="{"".join(parts)}"', 1))


def page(title: str, lead: Child, *children: Child, style: str = "") -> Html:
    """The whole document, with the script only if it has a `filter_box`. `style` is appended to `STYLE`."""
    body = joined(children)
    digest = base64.b64encode(sha256(SCRIPT.encode()).digest()).decode()
    filters = 'class="filter"' in body
    policy = POLICY.format(f"'sha256-{digest}'" if filters else "'none'")
    return Html(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=True)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{text(title)}</title><style>{STYLE}{style}</style></head><body>"
        f"<h1>{text(title)}</h1>{element('p', lead, class_='lead')}{body}"
        f"{f'<script>{SCRIPT}</script>' if filters else ''}</body></html>\n"
    )


def failed_question(line: Any, prefix: str) -> tuple[dict[str, Any], str] | None:
    """If `line` is the dead letter of a question: the event that was asked about, and the cause.

    `prefix` is how the positions of such questions begin.
    """
    if not isinstance(line, dict) or not str(line.get("position")).startswith(prefix):
        return None
    about = read_json(line["input"].encode())
    return about, f"{line['cause']}: {line['detail'][:MAX_DETAIL_CHARS]}"


def moment(time_ms: float | None, *, seconds: bool = True) -> str:
    """A time as `2017-08-27 00:14:48` in UTC; a dash for None or a time outside the years 1 to 9999."""
    if time_ms is None:
        return "–"
    try:
        at = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "–"
    return at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def readable(time_ms: int) -> str:
    """A time as ISO 8601 in UTC with seconds, or the milliseconds if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, timezone.utc).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
STEPS_COUNTED = tuple(digit * 10**zeros for zeros in range(9) for digit in (1, 2, 5))
MAX_LINES = 12
COLOURS = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)")


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Maps times from `start_ms` to `end_ms` onto pixels from `left` to `right`, clamped at both ends.

    If not `timed`, each second stands for one item of the stream, and labels are item numbers.
    """

    start_ms: float
    end_ms: float
    left: float
    right: float
    timed: bool = True

    def x(self, time_ms: float) -> float:
        span = max(self.end_ms - self.start_ms, 1)
        share = min(max((time_ms - self.start_ms) / span, 0), 1)
        return round(self.left + share * (self.right - self.left), 1)

    def lines(self, top: float, bottom: float) -> Iterator[Html]:
        steps = STEPS_S if self.timed else STEPS_COUNTED
        span_s = max((self.end_ms - self.start_ms) / 1000, 1)
        step_s = next((step for step in steps if span_s / step <= MAX_LINES), span_s / MAX_LINES)
        form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86_400 else "%Y-%m-%d"
        at_s = -(-self.start_ms / 1000 // step_s) * step_s
        while at_s * 1000 <= self.end_ms:
            x = self.x(at_s * 1000)
            said = _said(at_s, form) if self.timed else f"{at_s:,.0f}"
            yield element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
            yield element("text", said, x=x, y=top - 6, text_anchor="middle", class_="soft")
            at_s += step_s


def axis_over(times_ms: Sequence[float], left: float, right: float) -> TimeAxis:
    """An axis over all times, except a few outliers that are years away."""
    ordered = sorted(times_ms) or [0.0]
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = max(high - low, 1000.0)
    return TimeAxis(max(ordered[0], low - room), min(ordered[-1], high + room), left, right)


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _said(at_s: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return ""
