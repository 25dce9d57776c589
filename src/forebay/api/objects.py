"""Streams of objects over streams of bytes, and conversion of a user's elements to events.

Records travel encoded between Forebay's operators (`forebay.codec`). A user's plain function is composed with
decoding. For PyFlink's own operators (`key_by`, `process`, `union`), a decoding operator is added to the task
before them, so no object is pickled between the two.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from pydantic import BaseModel
from pyflink.common import Row, Types
from pyflink.common.typeinfo import MapTypeInfo, PickledBytesTypeInfo, RowTypeInfo
from pyflink.datastream import DataStream, FilterFunction, FlatMapFunction, MapFunction

from forebay.codec import decode, encode
from forebay.connectors.formats import result_json
from forebay.engine.prompt import FieldTemplate, PromptTemplate, fields_in
from forebay.errors import FunctionFailed, MalformedRecord, SettingError, TemplateFailed
from forebay.flink.keying import EventText, refused
from forebay.flink.types import BYTES
from forebay.json_numbers import NumberRefused, check_numbers, dump_json
from forebay.records import DeadLetter, Event, Result

T = TypeVar("T")


class ObjectStream(DataStream, Generic[T]):
    """A PyFlink `DataStream` of objects: use it as any other, with `map`, `filter`, `key_by`, `process`.

    Attributes:
        encoded: The underlying stream of bytes.
        holds: The class of the objects.
        read: Decodes an object.
        fields: The fields that every event of the stream has, if known.

    >>> def urgent(answered: fb.ObjectStream[fb.Result]) -> fb.ObjectStream[fb.Result]:
    ...     return answered.filter(lambda result: result.answer == "urgent")
    """

    def __init__(
        self,
        encoded: DataStream,
        holds: type[T],
        read: Callable[[bytes], T] = decode,
        *,
        fields: Iterable[str] | None = None,
    ) -> None:
        self.encoded = encoded
        self.holds = holds
        self.read = read
        self.fields = None if fields is None else frozenset(fields)
        self._objects: Any = None

    @property
    def _j_data_stream(self) -> Any:
        if self._objects is None:
            read = self.read
            objects = self.encoded.map(lambda data: read(bytes(data)), Types.PICKLED_BYTE_ARRAY())
            objects.name(f"{self.holds.__name__} objects").set_parallelism(
                self.encoded._j_data_stream.getParallelism()
            )
            self._objects = objects._j_data_stream
        return self._objects

    @_j_data_stream.setter
    def _j_data_stream(self, objects: Any) -> None:
        # PyFlink sets this when it chains functions, before a job starts.
        self._objects = objects

    # A plain function runs in one operator with `read`: no object is pickled.

    def map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream:
        if isinstance(func, MapFunction):
            return super().map(func, output_type)
        return self.encoded.map(self._reading(func), output_type)

    def flat_map(self, func: Callable[[T], Any], output_type: Any = None) -> DataStream:
        if isinstance(func, FlatMapFunction):
            return super().flat_map(func, output_type)
        return self.encoded.flat_map(self._reading(func), output_type)

    def filter(self, func: Callable[[T], bool]) -> ObjectStream[T]:
        if isinstance(func, FilterFunction):
            return super().filter(func)
        kept = self.encoded.filter(self._reading(func))
        return ObjectStream(kept, self.holds, self.read, fields=self.fields)

    def print(self, sink_identifier: str | None = None) -> Any:
        return self.map(str, Types.STRING()).print(sink_identifier)

    def _reading(self, func: Callable[[T], Any]) -> Callable[[bytes], Any]:
        read = self.read
        return lambda data: func(read(bytes(data)))

    if TYPE_CHECKING:
        # PyFlink has no types: these give a type checker the arguments of a user's function.
        def key_by(self, key_selector: Callable[[T], Any], key_type: Any = None) -> Any: ...

        @overload
        def execute_and_collect(
            self, job_execution_name: str | None = None, limit: None = None
        ) -> AbstractContextManager[Iterator[T]]: ...

        @overload
        def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[T]: ...

        def execute_and_collect(self, job_execution_name: str | None = None, limit: Any = None) -> Any: ...


def check_stream(stream: object, where: str) -> None:
    if not isinstance(stream, DataStream):
        raise SettingError(f"{where}: expected a DataStream, found {_described(stream)}")


def _described(value: object) -> str:
    kind = type(value).__name__
    if hasattr(value, "results") and hasattr(value, "dead_letters"):
        return f"{kind}; take its .results or its .dead_letters"
    return f"a value of type {kind}"


ToEvent = Callable[[Any], "Event | DeadLetter | Mapping[str, Any] | BaseModel | str"]
"""Makes an event of an element. A dict or a pydantic model becomes the event's fields, a text its field
`text`. An event of a source keeps everything else: its place, its key and its headers.
"""
TextOf = str | Callable[[Event], str | None]
"""A template such as `"{{ user }}"`, or a function of the event. The event has no key if the result is
None or empty, or if a field in the template is missing or null.
"""
Templates = Iterable[tuple[str, str]]
TEXT_ONLY = frozenset(("text",))
MAX_RAW_BYTES = 4096


@dataclass(frozen=True)
class ReadEvent:
    """Makes an event by `to_event`, or by the element's type. `read` decodes the element.

    If `to_event` fails for a source's event, that becomes a dead letter with the record as it was read; if it
    returns a dict or a text, only the fields change.
    """

    to_event: ToEvent | None = None
    read: Callable[[bytes], Any] | None = None

    def __call__(self, element: Any) -> Event | DeadLetter:
        """Raises `MalformedRecord` if it cannot be an event, and errors of `to_event`."""
        value = element if self.read is None else self.read(bytes(element))
        if isinstance(value, DeadLetter) or self.to_event is None:
            return event_of(value)
        if not isinstance(value, Event | Result):
            return event_of(self.to_event(value))
        try:
            made = self.to_event(value)
            event = event_of(made)
        except Exception as error:
            return _refused(value, element, error)
        if isinstance(value, Event) and isinstance(event, Event) and not isinstance(made, Event):
            return replace(value, fields=event.fields)
        return event


def _refused(value: Event | Result, element: Any, error: Exception) -> DeadLetter:
    if isinstance(value, Event):
        return refused(value, error)
    # Its answer may be an instance of a model; the encoded result has it as JSON.
    raw = result_json(decode(bytes(element))).encode()
    record = Event(raw, value.fields, value.time_ms, value.position, value.record_key, value.headers)
    return refused(record, error, id=value.id, key=value.key)


def event_of(value: Any) -> Event | DeadLetter:
    """Raises `MalformedRecord` if `value` cannot be an event."""
    if isinstance(value, DeadLetter):
        return value
    if isinstance(value, Event):
        _check_numbers(value.fields)
        return value
    if isinstance(value, str):
        return Event(value.encode("utf-8", "replace"), {"text": value})
    if isinstance(value, Row):
        value = value.as_dict()
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        fields = dict(value)
        _check_numbers(fields)
        try:
            return Event(dump_json(fields), fields)
        except TypeError as error:
            raise MalformedRecord(f"a field is not a JSON value: {error}") from None
    raise MalformedRecord(
        f"expected a dict, a text, a pydantic model or an Event, found {type(value).__name__}; make one of "
        f"it with to_event"
    )


def _check_numbers(fields: Mapping[str, Any]) -> None:
    try:
        check_numbers(fields)
    except NumberRefused as error:
        raise MalformedRecord(str(error)) from None


@dataclass(frozen=True)
class EncodeEvent:
    """Encodes an event, or a dead letter if it cannot be made; never raises."""

    to_event: ReadEvent

    def __call__(self, element: Any) -> bytes:
        try:
            return encode(self.to_event(element))
        except Exception as error:
            shown = repr(element)[:MAX_RAW_BYTES].encode("utf-8", "replace")
            return encode(refused(Event(element if isinstance(element, bytes) else shown, {}), error))


def source_of(
    stream: Any, to_event: ToEvent | None, where: str, *, templates: Templates = ()
) -> tuple[DataStream, ReadEvent | None]:
    """The stream that an operator reads, and a converter of its elements (None: they are encoded events).

    Raises `SettingError`, naming the function `where`, if it is not a stream of events, or a template names a
    field that no event has.
    """
    check_stream(stream, where)
    if to_event is not None and not callable(to_event):
        raise SettingError(f"{where}: to_event: expected a function, found {type(to_event).__name__}")
    if isinstance(stream, ObjectStream):
        if to_event is not None:
            return stream.encoded, ReadEvent(to_event, stream.read)
        if stream.holds is not Event:
            raise SettingError(
                f"{where}: the stream holds {stream.holds.__name__} objects: pass to_event= to make an event "
                f"of each"
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
                f"{where}: the stream holds elements of type {kind}: pass to_event= to make an event of each"
            )
    return stream, ReadEvent(to_event)


def encoded_events(
    stream: Any, to_event: ToEvent | None, where: str, *, templates: Templates = ()
) -> DataStream:
    """Keeps the order. Raises as `source_of`."""
    source, read = source_of(stream, to_event, where, templates=templates)
    if read is None:
        return source
    encoded = source.map(EncodeEvent(read), BYTES).name("events")
    return encoded.set_parallelism(source._j_data_stream.getParallelism())


def check_fields(templates: Templates, fields: frozenset[str], where: str) -> None:
    for what, text in templates:
        missing = sorted(fields_in(text, what) - fields)
        if missing and _fails(text, fields):
            raise SettingError(
                f"{where}: {what} names the field {missing[0]!r}, which the stream's events do not have: "
                f"they have {', '.join(sorted(fields))}"
            )


def _fails(text: str, fields: frozenset[str]) -> bool:
    """Rendered, because a template may test `is defined`."""
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
    template: FieldTemplate

    def __call__(self, event: Event) -> str:
        return self.template.render(event.fields, time_ms=event.time_ms)


def text_of(given: TextOf | None, what: str) -> EventText | None:
    if given is None:
        return None
    if isinstance(given, str):
        template = FieldTemplate(given, what=what, required=True)
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
    return [(what, text) for what, text in (("key", key), ("id", id)) if isinstance(text, str)]


MAX_SHOWN_CHARS = 80
MARK = " failed for "
"""Separates the function and the element."""


@contextmanager
def failing_as(where: str, what: str, item: Any) -> Iterator[None]:
    """Raise errors of the block as `FunctionFailed`, naming the sink `where`, the step `what` and the
    element."""
    try:
        yield
    except Exception as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise FunctionFailed(f"{where}: {what}{MARK}{shown(item)}: {detail}") from error


def shown(item: Any) -> str:
    kind, known = type(item).__name__, dict[str, str | None]()
    if isinstance(item, Result):
        kind, known = "result", {"id": item.id, "key": item.key}
    elif isinstance(item, DeadLetter):
        kind, known = "dead letter", {"id": item.id or item.position, "key": item.key}
    elif isinstance(item, Event):
        kind, known = "event", {"position": item.position}
    parts = [f"{name} {_bounded(repr(value))}" for name, value in known.items() if value]
    return f"the {kind} with {' and '.join(parts)}" if parts else f"the {kind} {_bounded(reprlib.repr(item))}"


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def function_of(cause: str) -> str | None:
    """The sink and function of a failure; None if it was not a user's function."""
    kind = f"{FunctionFailed.__name__}: "
    return cause.removeprefix(kind).partition(MARK)[0] if cause.startswith(kind) and MARK in cause else None
