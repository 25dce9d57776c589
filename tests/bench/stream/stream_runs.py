"""Runs of pipelines with known times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forebay.bench.stream.records import EventRecord, StreamRun

STAGES_S = (0.001, 0.002, 0.003, 0.01, 0.1, 0.2, 0.001, 0.5)
"""Durations of an event's stages."""
NAMES = (
    "emitted_s",
    "read_s",
    "accepted_s",
    "sent_s",
    "first_token_s",
    "answered_s",
    "left_s",
    "committed_s",
)


def event(index: int, due_s: float, stages_s: Sequence[float] = STAGES_S, **changes: Any) -> EventRecord:
    at_s, moments = due_s, {}
    for name, took_s in zip(NAMES, stages_s, strict=True):
        at_s += took_s
        moments[name] = at_s
    made = EventRecord(index, f"e{index}", due_s, free_s=due_s, results=1, attempts=1, **moments)
    return replace(made, **changes)


def lost(index: int, due_s: float, **changes: Any) -> EventRecord:
    return replace(EventRecord(index, f"e{index}", due_s, due_s, due_s + 0.001, due_s + 0.002), **changes)


def stream_run(events: Sequence[EventRecord], **changes: Any) -> StreamRun:
    end_s = max((each.committed_s or each.due_s for each in events), default=0.0)
    asked = {"schedule": {"kind": "constant", "rate_per_s": 10.0}, "events": len(events)}
    return replace(StreamRun("2026-01-01T00:00:00+00:00", end_s, asked, tuple(events)), **changes)


def even(count: int, rate_per_s: float = 10.0, **changes: Any) -> list[EventRecord]:
    return [event(index, index / rate_per_s, **changes) for index in range(count)]
