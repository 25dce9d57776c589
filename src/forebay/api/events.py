"""From what a user's stream holds to events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson
from pyflink.common import Row, Types
from pyflink.common.typeinfo import MapTypeInfo, PickledBytesTypeInfo, RowTypeInfo
from pyflink.datastream import DataStream

from forebay.api.objects import ObjectStream, check_stream
from forebay.codec import encode
from forebay.engine.prompt import FieldTemplate, PromptTemplate, fields_in
from forebay.errors import MalformedRecord, RecordError, SettingError, TemplateFailed, detail_text
from forebay.flink.keying import EventText
from forebay.flink.types import BYTES
from forebay.records import DeadLetter, Event

ToEvent = Callable[[Any], "Event | DeadLetter | Mapping[str, Any] | str"]
"""Makes an event of an element. A dict becomes the event's fields, a text its field `text`."""
TextOf = str | Callable[[Event], str]
"""A template of a text such as `"{{ user }}"`, or a function of the event."""
Templates = Iterable[tuple[str, str]]
"""Templates of an operator: what each is called, and its text."""
TEXT_ONLY = frozenset(("text",))
MAX_RAW_BYTES = 4096
"""Of an element that is no event, what its dead letter shows."""


@dataclass(frozen=True)
class ReadEvent:
    """The event of an element, as `to_event` makes it, or as its type says. `read` decodes the element."""

    to_event: ToEvent | None = None
    read: Callable[[bytes], Any] | None = None

    def __call__(self, element: Any) -> Event | DeadLetter:
        """Raises `MalformedRecord` for what is no event, and whatever `to_event` raises."""
        value = element if self.read is None else self.read(bytes(element))
        if isinstance(value, DeadLetter) or self.to_event is None:
            return event_of(value)
        return event_of(self.to_event(value))


def event_of(value: Any) -> Event | DeadLetter:
    """`value` as an event. Raises `MalformedRecord` for what is none."""
    if isinstance(value, Event | DeadLetter):
        return value
    if isinstance(value, str):
        return Event(value.encode("utf-8", "replace"), {"text": value})
    if isinstance(value, Row):
        value = value.as_dict()
    if isinstance(value, Mapping):
        fields = dict(value)
        try:
            return Event(orjson.dumps(fields), fields)
        except TypeError as error:
            raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    raise MalformedRecord(
        f"expected a dict, a text or an Event, found {type(value).__name__}; make one of it with to_event"
    )


@dataclass(frozen=True)
class EncodeEvent:
    """The bytes of an element's event, or of a dead letter where none can be made of it; raises nothing."""

    to_event: ReadEvent

    def __call__(self, element: Any) -> bytes:
        try:
            return encode(self.to_event(element))
        except Exception as error:
            raw = self._raw(element)
            if isinstance(error, RecordError):
                return encode(DeadLetter(raw, error.cause, detail_text(str(error))))
            detail = detail_text(f"{type(error).__name__}: {error}")
            return encode(DeadLetter(raw, RecordError.cause, detail))

    def _raw(self, element: Any) -> bytes:
        """What the element was, for its dead letter."""
        if self.to_event.read is not None:
            with suppress(Exception):
                element = self.to_event.read(bytes(element))
        if isinstance(element, Event):
            return element.raw
        return (
            element
            if isinstance(element, bytes)
            else repr(element)[:MAX_RAW_BYTES].encode("utf-8", "replace")
        )


def source_of(
    stream: Any, to_event: ToEvent | None, where: str, *, templates: Templates = ()
) -> tuple[DataStream, ReadEvent | None]:
    """The stream that an operator reads, and what makes events of its elements; None: they are encoded.

    Raises `SettingError`, naming `where`, for what is no stream of events and where a template names a field
    that none of them can have.
    """
    check_stream(stream, where)
    if to_event is not None and not callable(to_event):
        raise SettingError(f"{where}: to_event: expected a function, found {type(to_event).__name__}")
    if isinstance(stream, ObjectStream):
        if to_event is not None:
            return stream.encoded, ReadEvent(to_event, stream.read)
        if stream.holds is not Event:
            raise SettingError(
                f"{where}: the stream holds {stream.holds.__name__} objects: say with to_event= which event "
                f"to make of one"
            )
        if stream.fields is not None:
            check_fields(templates, stream.fields, where)
        return stream.encoded, None
    if to_event is None:
        kind = _type_of(stream)
        if kind == Types.STRING():
            check_fields(templates, TEXT_ONLY, where)
        elif isinstance(kind, RowTypeInfo):
            check_fields(templates, frozenset(kind.get_field_names()), where)
        elif kind is not None and not isinstance(kind, PickledBytesTypeInfo | MapTypeInfo):
            raise SettingError(
                f"{where}: the stream holds elements of type {kind}: say with to_event= which event to make "
                f"of one"
            )
    return stream, ReadEvent(to_event)


def encoded_events(stream: Any, to_event: ToEvent | None, where: str) -> DataStream:
    """`stream` as encoded events, in its order. Raises `SettingError` like `source_of`."""
    source, read = source_of(stream, to_event, where)
    if read is None:
        return source
    encoded = source.map(EncodeEvent(read), BYTES).name("events")
    return encoded.set_parallelism(source._j_data_stream.getParallelism())


def check_fields(templates: Templates, fields: frozenset[str], where: str) -> None:
    """Raise `SettingError` where a template cannot do without a field that no event has."""
    for what, text in templates:
        missing = sorted(fields_in(text, what) - fields)
        if missing and _fails(text, fields):
            raise SettingError(
                f"{where}: {what} names the field {missing[0]!r}, which the stream's events do not have: "
                f"they have {', '.join(sorted(fields))}"
            )


def _fails(text: str, fields: frozenset[str]) -> bool:
    """Whether the template fails for an event with these fields; one may ask `is defined` first."""
    try:
        PromptTemplate(text).render(dict.fromkeys(fields, "text"), key="key", time_ms=0)
    except TemplateFailed:
        return True
    return False


def _type_of(stream: DataStream) -> Any:
    try:
        return stream.get_type()
    except TypeError:  # One that PyFlink has no name for.
        return None


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
        template = FieldTemplate(given, what=what, required=what == "id")
        if not fields_in(given) and "event" not in given:
            raise SettingError(
                f"{what}: {given[:80]!r} names no field; write a template such as "
                f"'{{{{ {given.strip() if given.strip().isidentifier() else 'user'} }}}}'"
            )
        return Rendered(template)
    if callable(given):
        return cast(EventText, given)
    raise SettingError(
        f"{what}: expected a template or a function, found a value of type {type(given).__name__}"
    )


def key_templates(key: TextOf | None, id: TextOf | None) -> list[tuple[str, str]]:
    """The templates among them."""
    return [(what, text) for what, text in (("key", key), ("id", id)) if isinstance(text, str)]
