"""Events, results and dead letters as bytes: what crosses a process border or rests in a checkpoint.

The form is a msgpack array `[tag, field, …]` with a tag per class. A decoder takes arrays with fewer fields
than it knows (written by an older version; the rest get their defaults), so new fields go last.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgpack

from forebay.errors import MalformedRecord
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage

TAGS: dict[type, int] = {Event: 1, DeadLetter: 2, Result: 3, KeyedEvent: 4}
CLASSES: dict[int, type] = {tag: cls for cls, tag in TAGS.items()}
NAMES: dict[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in TAGS}
USAGE = NAMES[Result].index("usage")
EVENT = NAMES[KeyedEvent].index("event")

Record = Event | DeadLetter | Result | KeyedEvent


def encode(value: Record) -> bytes:
    """`value` as bytes. Raises `MalformedRecord` where a field is not made of JSON values."""
    try:
        packed: bytes = msgpack.packb(
            [TAGS[type(value)], *(getattr(value, name) for name in NAMES[type(value)])], default=_pack_other
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    return packed


def decode(data: bytes) -> Any:
    """The record that `encode` was given.

    Raises `MalformedRecord` where `data` is not such bytes.
    """
    try:
        tag, *values = msgpack.unpackb(data, strict_map_key=False)
        cls = CLASSES[tag]
        if cls is Result:
            values[USAGE] = Usage(*values[USAGE])
        elif cls is KeyedEvent:
            values[EVENT] = Event(*values[EVENT][: len(NAMES[Event])])
        return cls(*values[: len(NAMES[cls])])
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise MalformedRecord(f"not a Forebay record: {type(error).__name__}: {error}") from None


def _pack_other(value: object) -> object:
    if isinstance(value, Usage):
        return [value.prompt_tokens, value.completion_tokens, value.cached_tokens]
    if isinstance(value, Event):
        return [getattr(value, name) for name in NAMES[Event]]
    raise TypeError(f"{type(value).__name__} is not a JSON value")
