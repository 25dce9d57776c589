"""From stream elements to keyed events: key, id and shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyflink.datastream import FlatMapFunction, RuntimeContext

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, encode
from forebay.engine.prompt import FieldMissing, request_id
from forebay.errors import MalformedRecord, NoKey, RecordError, detail_text
from forebay.flink.metrics import SHARD_MARKS
from forebay.flink.one_core import SHARED
from forebay.flink.shards import flink_keys, shard_of
from forebay.records import JSON, DeadLetter, Event, KeyedEvent, Timeline
from forebay.stateful.turns import letter_of_event

MAX_TEXT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class TextField:
    """A field's text, dots for nesting; null is empty. Raises `MalformedRecord` for other values."""

    path: str = "text"

    def __call__(self, event: Event) -> str:
        value: JSON = event.fields
        for name in self.path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise MalformedRecord(f"the field {self.path!r} is missing; name the one with the text")
            value = value[name]
        if value is None:
            return ""
        if not isinstance(value, str):
            raise MalformedRecord(f"the field {self.path!r} is {type(value).__name__}; expected text")
        return value[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


class EventText(Protocol):
    """Returns None or blank text, or raises `FieldMissing`, for an event without one."""

    def __call__(self, event: Event) -> str | None: ...


ToEvent = Callable[[Any], Event | DeadLetter]


class Keying(FlatMapFunction):
    """Turns stream elements into `(Flink key of the shard, record bytes)`; keeps no state.

    Empty records for every shard precede the others, so that all subtasks forward event time. A record that
    `to_event`, `key` or `id` rejects becomes a `DeadLetter`. One without a key is spread by its id; with
    `needs_key`, it is rejected.
    """

    def __init__(
        self,
        *,
        shards: int,
        key: EventText | None = None,
        needs_key: bool = False,
        id: EventText | None = None,
        to_event: ToEvent | None = None,
        timeline: bool = False,
        clock: Clock | None = None,
        one_core: bool = False,
    ) -> None:
        self._one_core = one_core
        self._shards = shards
        self._key = key
        self._needs_key = needs_key
        self._id = id
        self._to_event = to_event
        self._timeline = timeline
        self._clock = clock or SystemClock()

    def open(self, runtime_context: RuntimeContext) -> None:
        if self._one_core:
            SHARED.join()
        self._flink_keys = flink_keys(self._shards)
        self._marks = runtime_context.get_metrics_group().counter(SHARD_MARKS)
        self._begun = False

    def flat_map(self, value: Any) -> Iterator[tuple[int, bytes]]:
        if not self._begun:
            self._begun = True
            self._marks.inc(self._shards)
            for flink_key in self._flink_keys:
                yield flink_key, b""
        spread_by, data = self._keyed(value)
        yield self._flink_keys[shard_of(spread_by, self._shards)], data

    def _keyed(self, value: Any) -> tuple[str, bytes]:
        try:
            record = decode(value) if self._to_event is None else self._to_event(value)
            if not isinstance(record, Event | DeadLetter):
                raise MalformedRecord(f"expected an Event or a DeadLetter, found {type(record).__name__}")
            if isinstance(record, DeadLetter):
                return _text("position", record.position or ""), encode(record)
        except Exception as error:
            raw = value if isinstance(value, bytes) else repr(value)[:4096].encode("utf-8", "replace")
            return "", encode(DeadLetter(raw=raw, cause=_cause(error), detail=_detail(error)))
        try:
            _text("position", record.position or "")
            key = key_of(self._key, record, needed=self._needs_key)
            id = id_of(self._id, record, key)
            timeline = Timeline(self._clock.wall_us()) if self._timeline else None
            item = KeyedEvent(id, key, record, self._clock.wall_ms(), timeline)
            return key or id, encode(item)
        except Exception as error:
            letter = refused(record, error, id=_made(self._id, record), key=_made(self._key, record))
            return letter.position or "", encode(letter)


def key_of(key: EventText | None, record: Event, *, needed: bool = False) -> str:
    """Empty if there is none; raises `NoKey` if it is `needed`."""
    if key is None:
        return ""
    try:
        made = key(record)
    except FieldMissing as error:
        if needed:
            raise NoKey(f"{error}; each record needs a key here") from None
        return ""
    text = "" if made is None else _text("key", made)
    if text.strip():
        return text
    if needed:
        raise NoKey("key: the key of this record is empty; each record needs one here")
    return ""


def id_of(id: EventText | None, record: Event, key: str) -> str:
    """As `id` derives it, else as `request_id`. Raises `RecordError` if it is empty."""
    given = None if id is None else _text("id", id(record))
    if given is not None and not given.strip():
        raise RecordError("the id is empty for this record")
    return request_id(record, key, given)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise RecordError(f"the {what} must be text, found {type(value).__name__}")
    return value


def refused(record: Event, error: Exception, *, id: str | None = None, key: str | None = None) -> DeadLetter:
    # A user's function may have made the event.
    position = record.position if isinstance(record.position, str) else None
    letter = letter_of_event(replace(record, position=position), _cause(error), _detail(error))
    return replace(letter, id=id, key=key)


def _made(text: EventText | None, record: Event) -> str | None:
    if text is None:
        return None
    try:
        made = text(record)
        return made if isinstance(made, str) and made.encode() else None
    except Exception:
        return None


def _cause(error: Exception) -> str:
    return error.cause if isinstance(error, RecordError) else RecordError.cause


def _detail(error: Exception) -> str:
    text = str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
    return detail_text(text)
