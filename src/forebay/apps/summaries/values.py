"""Values of summaries: events prepared for a prompt, statements with sources, and results."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.apps.base import FAILURES
from forebay.records import JSON
from forebay.untrusted_text import escape_special_tokens

WindowKind = Literal["tumbling", "sliding", "session", "rolling"]

BYTES_PER_TOKEN = 4
NO_TEXT = "(no text)"

_GONE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters, direction overrides and invisible tags. Emoji and Persian need joiners."""
_SPACE = re.compile(r"\s+")


def clean(text: str, max_tokens: int) -> str:
    """`text` on one line without invisible characters, truncated with a note to `max_tokens` tokens.

    Lone surrogates become question marks; an empty text becomes `(no text)`.
    """
    text = text.strip()
    # Only clean a prefix, so that a text of a megabyte costs no more.
    part = text[: 8 * BYTES_PER_TOKEN * max_tokens].encode("utf-8", "replace").decode()
    line = _SPACE.sub(" ", _GONE.sub("", part)).strip()
    if not line:
        return NO_TEXT
    if len(part) == len(text) and tokens(line) <= max_tokens:
        return line
    note = f"… ({len(text):,} characters)"
    room = max_tokens * BYTES_PER_TOKEN - len(note.encode())
    for end, char in enumerate(line):
        # Count the worst case: as if the character had to be escaped.
        room -= len(escape_special_tokens(char).encode()) + (char == "]")
        if room < 0:
            return line[:end] + note
    return line + note


def is_clipped(line: str) -> bool:
    return line.endswith(" characters)") and "… (" in line


def tokens(text: str) -> int:
    return max(1, -(-len(escape_special_tokens(text).encode("utf-8", "replace")) // BYTES_PER_TOKEN))


LINE_TOKENS = 8
STATEMENT_TOKENS = 6
MAX_SOURCES = 10
MAX_SOURCE_CHARS = 160


@dataclass(frozen=True, slots=True)
class Item:
    id: str
    time_ms: int
    text: str
    tokens: int
    copies: int = 1
    late: bool = False


def item_of(id: str, time_ms: int, text: str) -> Item:
    return Item(id, time_ms, text, tokens(text) + LINE_TOKENS)


@dataclass(frozen=True, slots=True)
class Source:
    id: str
    time_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of a summary.

    `more` counts sources beyond `MAX_SOURCES`. `unsupported`: its names, numbers and quotes that were in no
    text of its call.
    """

    text: str
    sources: tuple[Source, ...]
    more: int = 0
    unsupported: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return tokens(self.text) + STATEMENT_TOKENS

    @property
    def time_ms(self) -> int:
        return min(source.time_ms for source in self.sources)


@dataclass(frozen=True, slots=True)
class ItemChunk:
    id: int
    items: tuple[Item, ...]

    @property
    def events(self) -> int:
        return events_of(self.items)


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    level: int
    statements: tuple[Statement, ...]
    events: int


def events_of(items: Sequence[Item]) -> int:
    return sum(item.copies for item in items)


def weight(items: Sequence[Item]) -> int:
    return sum(item.tokens for item in items)


def source_of(item: Item) -> Source:
    return Source(item.id, item.time_ms, item.text[:MAX_SOURCE_CHARS])


def joined_sources(statements: Sequence[Statement]) -> tuple[tuple[Source, ...], int]:
    found = {source.id: source for statement in statements for source in statement.sources}
    every = sorted(found.values(), key=lambda source: (source.time_ms, source.id))
    more = sum(statement.more for statement in statements)
    return tuple(every[:MAX_SOURCES]), more + max(0, len(every) - MAX_SOURCES)


def within(statements: Sequence[Statement], limit: int) -> tuple[tuple[Statement, ...], int]:
    """The statements that fit into `limit` tokens, in time order, and the number of dropped ones.

    Drops statements with the fewest sources first, the later of equals.
    """
    by_worth = sorted(statements, key=lambda each: (-(len(each.sources) + each.more), each.time_ms))
    kept, left = [], limit
    for statement in by_worth:
        if statement.tokens <= left:
            left -= statement.tokens
            kept.append(statement)
    kept.sort(key=lambda each: each.time_ms)
    return tuple(kept), len(statements) - len(kept)


FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_000


@dataclass(frozen=True, slots=True)
class Summary:
    """`revision` is 0 at first and counts corrections and running summaries.

    Each of the `events` is either `summarised` in exactly one call, `left_out` by sampling, or `failed` with
    its call. `clipped` ones were truncated; `late` ones came after their window closed. `failures` counts
    failed calls by cause, including calls without new events.

    Statements that are left out: `cut` ones exceeded a token budget, `unsourced` ones cited no existing
    source, and `broken` ones repeat themselves or are truncated. `calls` and tokens include those of panes
    that sliding windows share.
    """

    key: str
    kind: WindowKind
    start_ms: int
    end_ms: int
    revision: int
    statements: tuple[Statement, ...]
    events: int
    summarised: int
    left_out: int
    failed: int
    late: int
    cut: int
    unsourced: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    failures: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""
    broken: int = 0
    clipped: int = 0

    @property
    def faithful(self) -> bool | None:
        """Whether all names, numbers and quotes of its statements are in the texts; None without any."""
        return not any(each.unsupported for each in self.statements) if self.statements else None

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "summary",
            "key": self.key,
            "window": {
                "kind": self.kind,
                "start": iso(self.start_ms),
                "end": iso(self.end_ms),
                "start_ms": self.start_ms,
                "end_ms": self.end_ms,
            },
            "revision": self.revision,
            # No text, rather than an empty one: `failure` has the reason.
            "text": " ".join(each.text for each in self.statements) or None,
            "faithful": self.faithful,
            "statements": [
                {
                    "text": each.text,
                    "sources": [
                        {"id": source.id, "time_ms": source.time_ms, "text": source.text}
                        for source in each.sources
                    ],
                    "more_sources": each.more,
                    "unsupported": list(each.unsupported),
                }
                for each in self.statements
            ],
            **{
                name: getattr(self, name)
                for name in (
                    "events",
                    "summarised",
                    "left_out",
                    "failed",
                    "late",
                    "cut",
                    "unsourced",
                    "broken",
                    "clipped",
                    "calls",
                    "prompt_tokens",
                    "completion_tokens",
                    "failure",
                )
            },
            FAILURES: dict(self.failures),
        }

    @classmethod
    def from_json(cls, value: dict[str, JSON]) -> Summary:
        """Raises `KeyError` or `TypeError` for objects that are not from `to_json`."""
        window = {name: value["window"][name] for name in ("kind", "start_ms", "end_ms")}
        statements = tuple(
            Statement(
                each["text"],
                tuple(Source(one["id"], one["time_ms"], one["text"]) for one in each["sources"]),
                each["more_sources"],
                tuple(each["unsupported"]),
            )
            for each in value["statements"]
        )
        plain = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{**plain, **window, "statements": statements})


@dataclass(frozen=True, slots=True)
class Refused:
    key: str
    id: str
    time_ms: int | None
    text: str
    cause: str


def moment(time_ms: int) -> datetime.datetime:
    bounded = min(max(time_ms, FIRST_MS), LAST_MS)
    return datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(
        milliseconds=bounded
    )


def iso(time_ms: int) -> str:
    return f"{moment(time_ms):%Y-%m-%dT%H:%M:%SZ}"
