"""Before the shuffle: give each event its key, its id and the shard that both belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pyflink.datastream import MapFunction, RuntimeContext

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, encode
from forebay.engine.prompt import request_id
from forebay.errors import MalformedRecord, RecordError
from forebay.operators.shards import flink_keys, shard_of
from forebay.records import DeadLetter, Event, KeyedEvent


class EventText(Protocol):
    """Derives a key or an id from an event; a `FieldTemplate`'s `render` wrapped, or a user's function."""

    def __call__(self, event: Event) -> str: ...


ToEvent = Callable[[Any], Event | DeadLetter]


class Keying(MapFunction):
    """Turns stream elements into `(Flink key of the shard, record bytes)`; keeps no state.

    Elements are encoded records where `to_event` is None, else whatever it takes. What `to_event`, `key` or
    `id` refuse with a `RecordError` goes on as a `DeadLetter`. Without a `key`, the id spreads the records.
    """

    def __init__(
        self,
        *,
        shards: int,
        key: EventText | None = None,
        id: EventText | None = None,
        to_event: ToEvent | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._shards = shards
        self._key = key
        self._id = id
        self._to_event = to_event
        self._clock = clock or SystemClock()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._flink_keys = flink_keys(self._shards)

    def map(self, value: Any) -> tuple[int, bytes]:
        spread_by, data = self._keyed(value)
        return self._flink_keys[shard_of(spread_by, self._shards)], data

    def _keyed(self, value: Any) -> tuple[str, bytes]:
        try:
            record = decode(value) if self._to_event is None else self._to_event(value)
        except RecordError as error:
            raw = value if isinstance(value, bytes) else repr(value)[:4096].encode("utf-8", "replace")
            return "", encode(DeadLetter(raw=raw, cause=error.cause, detail=str(error)))
        if isinstance(record, DeadLetter):
            return record.position or "", encode(record)
        if not isinstance(record, Event):
            raise MalformedRecord(f"expected an Event or a DeadLetter, found {type(record).__name__}")
        try:
            key = "" if self._key is None else self._key(record)
            id = request_id(record, key, None if self._id is None else self._id(record))
            item = KeyedEvent(id=id, key=key, event=record, read_ms=self._clock.wall_ms())
            return id if self._key is None else key, encode(item)
        except RecordError as error:
            letter = DeadLetter(
                raw=record.raw,
                cause=error.cause,
                detail=str(error),
                time_ms=record.time_ms,
                position=record.position,
            )
            return record.position or "", encode(letter)
