"""From what a user's stream holds to events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson
from pyflink.common import Row

from forebay.codec import decode
from forebay.engine.prompt import FieldTemplate
from forebay.errors import MalformedRecord, SettingError
from forebay.flink.keying import EventText
from forebay.records import DeadLetter, Event

ToEvent = Callable[[Any], "Event | DeadLetter | Mapping[str, Any] | str"]
"""Makes an event of an element of the stream; a dict is its fields, a text its field `text`."""
TextOf = str | Callable[[Event], str]
"""A template of a key or an id, or a function of the event."""


@dataclass(frozen=True)
class ReadEvent:
    """The event of an element, as `to_event` makes it, or as its type says."""

    to_event: ToEvent | None = None

    def __call__(self, element: Any) -> Event | DeadLetter:
        """Raises `MalformedRecord` for what is no event, and whatever `to_event` raises."""
        return event_of(element if self.to_event is None else self.to_event(element))


def event_of(value: Any) -> Event | DeadLetter:
    """`value` as an event. Raises `MalformedRecord` for what is none."""
    if isinstance(value, Event | DeadLetter):
        return value
    if isinstance(value, str):
        return Event(value.encode("utf-8", "replace"), {"text": value})
    if isinstance(value, Row):
        value = value.as_dict()
    if isinstance(value, Mapping):
        try:
            return Event(orjson.dumps(value), value)
        except TypeError as error:
            raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    if isinstance(value, bytes):
        # What Forebay's own operators give.
        record: Event | DeadLetter = decode(value)
        return record
    raise MalformedRecord(
        f"expected a dict, a text or an Event, found {type(value).__name__}; make one of it with to_event"
    )


@dataclass(frozen=True)
class Rendered:
    """A template's text for an event."""

    template: FieldTemplate

    def __call__(self, event: Event) -> str:
        return self.template.render(event.fields, time_ms=event.time_ms)


def text_of(given: TextOf | None, what: str) -> EventText | None:
    """What the operator takes for a key or an id. Raises `SettingError`, naming `what`, for what is neither a
    template with a field in it nor a function."""
    if given is None:
        return None
    if isinstance(given, str):
        if "{{" not in given:
            raise SettingError(f"{what}: {given!r} names no field; write {{{{ {given.strip()} }}}}")
        return Rendered(FieldTemplate(given, what=what, required=True))
    if callable(given):
        return cast(EventText, given)
    raise SettingError(f"{what}: expected a template or a function, found {type(given).__name__}")
