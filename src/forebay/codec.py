"""Events, results and dead letters as bytes: what crosses a process border or rests in a checkpoint.

The form is a msgpack array `[tag, field, …]` with a tag per class. A decoder takes arrays with fewer fields
than it knows (written by an older version; the rest get their defaults), so new fields go last.

What else operators and sources keep is a msgpack array `[version, value, …]`.
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
"""Type of the msgpack extension that holds the text of a number that msgpack does not have."""
PLAIN: dict[type, Callable[[Any], object]] = {
    **{dict: dict, list: list, str: str.__str__, bytes: bytes},
    **{int: int, float: float},
}
"""What makes a plain value of one of a subclass."""

PICKLE = b"\x80"
"""How a Python pickle begins, and no array of msgpack's."""

DAMAGED = (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException)
"""What reading state raises of bytes that were not written as such."""

Record = Event | DeadLetter | Result | KeyedEvent


def encode(value: Record) -> bytes:
    """`value` as bytes. Raises `MalformedRecord` where a field is not made of JSON values."""
    try:
        kind = type(value)
        packed = _pack([TAGS[kind], *VALUES[kind](value)])
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    return packed


def decode(data: bytes | Sequence[int]) -> Any:
    """The record that `encode` was given.

    PyFlink's `execute_and_collect` gives bytes as a list of Java's, from -128 to 127: these are taken, too.
    Raises `MalformedRecord` where `data` is not such bytes.
    """
    try:
        if not isinstance(data, bytes):
            data = bytes(number & 255 for number in data)
        tag, *values = msgpack.unpackb(data, strict_map_key=False, ext_hook=_number)
        cls = CLASSES[tag]
        if cls is Result:
            values[USAGE] = Usage(*values[USAGE])
        elif cls is KeyedEvent:
            values[EVENT] = Event(*values[EVENT][: len(NAMES[Event])])
        at = TIMELINES.get(cls)
        if at is not None and at < len(values) and values[at] is not None:
            values[at] = Timeline(*values[at][: len(MOMENTS)])
        return cls(*values[: len(NAMES[cls])])
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise MalformedRecord(f"not a Forebay record: {type(error).__name__}: {error}") from None


def pack_state(version: int, *values: object) -> bytes:
    """What `unpack_state` reads. Values are JSON values, bytes, and arrays and mappings of those."""
    return _pack([version, *values])


def unpack_state(data: bytes, version: int, what: str) -> list[Any]:
    """The values that `pack_state` was given; tuples come as lists.

    Nothing in `data` is ever run, and no more memory is taken than some times its length. Raises
    `ForebayError`, which names `what`, for state in another version's form and for bytes that are no state.
    """
    try:
        values: list[Any] = msgpack.unpackb(not_pickled(data, what), strict_map_key=False, ext_hook=_number)
        if type(values) is not list:
            raise TypeError(f"expected an array, found {type(values).__name__}")
        found = values.pop(0)
    except DAMAGED as error:
        raise damaged(what, error) from None
    if found != version:
        raise ForebayError(
            f"the checkpoint holds {what} in format {found!r}, this Forebay reads {version}: finish the run "
            f"with the version that wrote it, or start over"
        )
    return values


def damaged(what: str, error: Exception) -> ForebayError:
    """That state, named `what`, is not what was written."""
    return ForebayError(
        f"the checkpoint's {what} cannot be read ({type(error).__name__}: {str(error)[:200]}): the "
        f"checkpoint is damaged; resume from another one, or start over"
    )


def not_pickled(data: bytes, what: str) -> bytes:
    """`data`, of state that is read by other means. Raises `ForebayError`, naming `what`, for a pickle."""
    if data[:1] == PICKLE:
        raise ForebayError(
            f"the checkpoint holds {what} as a Python pickle, as older versions wrote it; reading that could "
            f"run code of whoever wrote it: finish the run with the version that began it, or start over"
        )
    return data


def _pack(values: list[object]) -> bytes:
    # Without strict types msgpack writes an ExactFloat as a plain float.
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
