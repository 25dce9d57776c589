"""What summaries are made of: event texts on their way into a prompt (cleaned, clipped, weighed in tokens),
statements with their sources, and what leaves a key: a summary of a window, or an event that none will have.
"""

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
"""Control characters, overrides of the writing direction, and tags that no reader sees. Joiners stay: emoji
and Persian need them."""
_SPACE = re.compile(r"\s+")


def clean(text: str, max_tokens: int) -> str:
    """`text` on one line without what cannot be seen, in at most `max_tokens` tokens; a clipped one says so.

    Surrogates without a partner become question marks; an empty text becomes `(no text)`.
    """
    text = text.strip()
    # White space and controls are taken from a part, so that a text of a megabyte costs no more than that.
    part = text[: 8 * BYTES_PER_TOKEN * max_tokens].encode("utf-8", "replace").decode()
    line = _SPACE.sub(" ", _GONE.sub("", part)).strip()
    if not line:
        return NO_TEXT
    if len(part) == len(text) and tokens(line) <= max_tokens:
        return line
    note = f"… ({len(text):,} characters)"
    room = max_tokens * BYTES_PER_TOKEN - len(note.encode())
    for end, char in enumerate(line):
        # By itself a sign is escaped wherever it may be.
        room -= len(escape_special_tokens(char).encode()) + (char == "]")
        if room < 0:
            return line[:end] + note
    return line + note


def tokens(text: str) -> int:
    """An estimate of the tokens of `text` in a prompt, at least 1: one per four bytes of UTF-8, escaped."""
    return max(1, -(-len(escape_special_tokens(text).encode("utf-8", "replace")) // BYTES_PER_TOKEN))


LINE_TOKENS = 8
"""What an event's line costs beside its text: number, time, line break."""
STATEMENT_TOKENS = 6
MAX_SOURCES = 10
"""Sources that a statement names; more are counted."""
MAX_SOURCE_CHARS = 160


@dataclass(frozen=True, slots=True)
class Item:
    """An event as it waits for its summary, in a prompt one line of `tokens`. Made by `item_of`.

    `text` is clean. `copies`: how many events of the same text it stands for. `late`: it was folded in from a
    window that had closed.
    """

    id: str
    time_ms: int
    text: str
    tokens: int
    copies: int = 1
    late: bool = False


def item_of(id: str, time_ms: int, text: str) -> Item:
    """The item of an event whose text is clean."""
    return Item(id, time_ms, text, tokens(text) + LINE_TOKENS)


@dataclass(frozen=True, slots=True)
class Source:
    """An event that a statement came from; `text` is clipped."""

    id: str
    time_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of a summary. `more`: sources beyond the `MAX_SOURCES` that are named."""

    text: str
    sources: tuple[Source, ...]
    more: int = 0

    @property
    def tokens(self) -> int:
        return tokens(self.text) + STATEMENT_TOKENS

    @property
    def time_ms(self) -> int:
        """The time of its first source."""
        return min(source.time_ms for source in self.sources)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events that one call summarises."""

    id: int
    items: tuple[Item, ...]

    @property
    def events(self) -> int:
        return events_of(self.items)


@dataclass(frozen=True, slots=True)
class Node:
    """A partial summary: of a chunk at level 0, of the nodes merged into it above."""

    id: int
    level: int
    statements: tuple[Statement, ...]
    events: int


def events_of(items: Sequence[Item]) -> int:
    """How many events `items` stand for."""
    return sum(item.copies for item in items)


def weight(items: Sequence[Item]) -> int:
    """The tokens of `items`."""
    return sum(item.tokens for item in items)


def source_of(item: Item) -> Source:
    """`item` as a statement names it."""
    return Source(item.id, item.time_ms, item.text[:MAX_SOURCE_CHARS])


def joined_sources(statements: Sequence[Statement]) -> tuple[tuple[Source, ...], int]:
    """The sources of several statements, each once and in order of time, and how many more there are."""
    found = {source.id: source for statement in statements for source in statement.sources}
    every = sorted(found.values(), key=lambda source: (source.time_ms, source.id))
    more = sum(statement.more for statement in statements)
    return tuple(every[:MAX_SOURCES]), more + max(0, len(every) - MAX_SOURCES)


def within(statements: Sequence[Statement], limit: int) -> tuple[tuple[Statement, ...], int]:
    """`statements` in order of time, in at most `limit` tokens, and how many had to go.

    Those with the fewest sources go first, of equals the later.
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
"""The years 1 and 9999."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A window's summary. `revision` is 0 for the first, and counts corrections and running summaries.

    Of the `events` that the window has, `summarised` were in exactly one call each, `left_out` by sampling
    over the budget, and those `failed` whose call was given up. `failures` counts the calls that were given
    up, by cause, also those that were about no new event; `failure` is the last of them, in words. `late`
    events came from windows that had closed. `cut` statements did not fit into the budget of the summary or
    of a partial one; `unsourced` ones named no source that was there, and were dropped. `calls` and tokens
    are those of its own call and of its panes, which sliding windows share.
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

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object: `text` for readers, then all else."""
        failed = bool(self.failures) and not self.statements
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
            # No text, rather than an empty one, if there is nothing but failed calls.
            "text": None if failed else " ".join(each.text for each in self.statements),
            "statements": [
                {
                    "text": each.text,
                    "sources": [
                        {"id": source.id, "time_ms": source.time_ms, "text": source.text}
                        for source in each.sources
                    ],
                    "more_sources": each.more,
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
        """The summary that `to_json` gave. Raises `KeyError` or `TypeError` for another object."""
        window = {name: value["window"][name] for name in ("kind", "start_ms", "end_ms")}
        statements = tuple(
            Statement(
                each["text"],
                tuple(Source(one["id"], one["time_ms"], one["text"]) for one in each["sources"]),
                each["more_sources"],
            )
            for each in value["statements"]
        )
        plain = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{**plain, **window, "statements": statements})


@dataclass(frozen=True, slots=True)
class Refused:
    """An event that no summary has. `cause`: `late`, `future`, `no_time` or `too_many_windows`."""

    key: str
    id: str
    time_ms: int | None
    text: str
    cause: str


def moment(time_ms: int) -> datetime.datetime:
    """`time_ms` in UTC; the first or last moment that there is a date for where it lies beyond."""
    bounded = min(max(time_ms, FIRST_MS), LAST_MS)
    return datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(
        milliseconds=bounded
    )


def iso(time_ms: int) -> str:
    """`time_ms` as people write it."""
    return f"{moment(time_ms):%Y-%m-%dT%H:%M:%SZ}"
