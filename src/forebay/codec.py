"""Events, results, dead letters and the state of operators and sources as bytes.

A record is a msgpack array `[tag, field, …]` with a tag per class. State is `[FORMAT, value, …]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import msgpack

from forebay.errors import ForebayError, MalformedRecord
from forebay.json_numbers import ExactFloat
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Timeline, Usage

TAGS: dict[type, int] = {Event: 1, DeadLetter: 2, Result: 3, KeyedEvent: 4}
CLASSES: dict[int, type] = {tag: cls for cls, tag in TAGS.items()}
NAMES: dict[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in TAGS}
VALUES = {cls: attrgetter(*names) for cls, names in NAMES.items()}
USAGE = NAMES[Result].index("usage")
EVENT = NAMES[KeyedEvent].index("event")
TIMELINES: dict[type, int] = {cls: NAMES[cls].index("timeline") for cls in (Result, KeyedEvent)}
MOMENTS = tuple(f.name for f in fields(Timeline))
MOMENTS_OF = attrgetter(*MOMENTS)

NUMBER = 1
"""msgpack extension type for the text of a number that msgpack cannot represent."""
PLAIN: dict[type, Callable[[Any], object]] = {
    **{dict: dict, list: list, str: str.__str__, bytes: bytes},
    **{int: int, float: float},
}

FORMAT = 4
"""Format of everything in checkpoints and in `run.json`. Increase it with every change; others are
refused.
"""

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException)

Record = Event | DeadLetter | Result | KeyedEvent


def encode(value: Record) -> bytes:
    """`value` as bytes. Raises `MalformedRecord` if a field is not a JSON value."""
    try:
        kind = type(value)
        packed = _pack([TAGS[kind], *VALUES[kind](value)])
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    return packed


def decode(data: bytes | Sequence[int]) -> Any:
    """The inverse of `encode`. Raises `MalformedRecord` for other bytes.

    Also takes a list of Java's bytes (-128 to 127), as from PyFlink's `execute_and_collect`.
    """
    try:
        if not isinstance(data, bytes):
            data = bytes(number & 255 for number in data)
        tag, *values = msgpack.unpackb(data, strict_map_key=False, ext_hook=_number)
        cls = CLASSES[tag]
        if len(values) != len(NAMES[cls]):
            raise ValueError(f"{len(values)} fields; expected {len(NAMES[cls])}")
        if cls is Result:
            values[USAGE] = Usage(*values[USAGE])
        elif cls is KeyedEvent:
            values[EVENT] = Event(*values[EVENT])
        at = TIMELINES.get(cls)
        if at is not None and values[at] is not None:
            values[at] = Timeline(*values[at])
        return cls(*values)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise MalformedRecord(f"not a Forebay record: {type(error).__name__}: {error}") from None


def pack_state(*values: object) -> bytes:
    """State for `unpack_state`. Values are JSON values, bytes, and arrays and mappings of those."""
    return _pack([FORMAT, *values])


def unpack_state(data: bytes, what: str) -> list[Any]:
    """The values given to `pack_state`; tuples become lists.

    Runs nothing in `data`. Raises `ForebayError`, naming `what`, for another format or damaged bytes.
    """
    try:
        values: list[Any] = msgpack.unpackb(data, strict_map_key=False, ext_hook=_number)
        if type(values) is not list:
            raise TypeError(f"expected an array, found {type(values).__name__}")
        found = values.pop(0)
    except DAMAGED as error:
        raise damaged(what, error) from None
    check_format(found, f"the checkpoint's {what}")
    return values


def check_format(found: object, what: str) -> None:
    """Raise `ForebayError` if `what` was written in another format than `FORMAT`."""
    if type(found) is not int or found != FORMAT:
        raise ForebayError(
            f"{what}: format {str(found)[:20]}; this Forebay reads format {FORMAT}: continue with the "
            f"version that wrote it, or start over"
        )


def damaged(what: str, error: Exception) -> ForebayError:
    return ForebayError(
        f"the checkpoint's {what} cannot be read ({type(error).__name__}: {str(error)[:200]}): the "
        f"checkpoint is damaged; resume from another one, or start over"
    )


def _pack(values: list[object]) -> bytes:
    # Without strict types, msgpack writes an ExactFloat as a plain float.
    packed: bytes = msgpack.packb(values, default=_pack_other, strict_types=True)
    return packed


def _pack_other(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, ExactFloat):
        return msgpack.ExtType(NUMBER, value.text.encode())
    if isinstance(value, Usage):
        return [value.prompt_tokens, value.completion_tokens, value.cached_tokens]
    if isinstance(value, Event):
        return list(VALUES[Event](value))
    if isinstance(value, Timeline):
        return list(MOMENTS_OF(value))
    if type(value) is int:
        return msgpack.ExtType(NUMBER, str(value).encode())
    for kind, plain in PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _number(code: int, data: bytes) -> int | float:
    if code != NUMBER:
        raise ValueError(f"an extension of type {code}")
    text = data.decode("ascii")
    return int(text) if text.removeprefix("-").isdigit() else ExactFloat(text)
