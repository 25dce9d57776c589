"""What leaves the summaries of a key: a summary of a window, or an event that none will have."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from forebay.apps.summaries.parts import Source, Statement
from forebay.apps.summaries.plan import WindowKind
from forebay.records import JSON

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The years 1 and 9999."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A window's summary. `revision` is 0 for the first, and counts corrections and running summaries.

    Of the `events` that the window has, `summarised` were in exactly one call each, `left_out` by sampling
    over the budget, and those `failed` whose call was given up. `late` ones came from windows that had
    closed. `cut` statements did not fit into the budget of the summary or of a partial one; `unsourced` ones
    named no source that was there, and were dropped. `calls` and tokens are those of its own call and of its
    panes, which sliding windows share.
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

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object: `text` for readers, then all else."""
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
            "text": " ".join(each.text for each in self.statements),
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
                )
            },
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
