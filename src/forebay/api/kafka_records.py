"""The Kafka record for an object of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel

from forebay.api.files import json_line
from forebay.api.objects import EncodeEvent, ReadEvent, failing_as
from forebay.codec import decode
from forebay.connectors.kafka.sink import too_large
from forebay.connectors.kafka.written import DEFAULTS, REQUEST, Headers, Record, fitting_record, headers_of
from forebay.engine.prompt import FieldMissing, FieldTemplate, fields_in
from forebay.errors import SettingError, TooLargeForSink, detail_text
from forebay.flink.keying import refused
from forebay.json_numbers import read_json
from forebay.records import DeadLetter, Event, Result

TooLarge = Literal["fail", "dead_letter"]
ADVICE = (
    "write less of it with value=, raise max.request.size in properties= (and the topic's "
    'max.message.bytes), or take such elements as dead letters with too_large="dead_letter"'
)
KeyOf = str | Callable[[Any], "str | bytes | None"]
"""A template such as `"{{ user }}"`, or a function of the element."""


@dataclass(frozen=True)
class WriteObject:
    """Makes key, value and headers for an element. `read` decodes it; None: it is the object itself. `where`:
    the sink, for messages.

    Results and dead letters keep their record's key and headers. A dead letter is cut to `limit_bytes`,
    unless `value` makes its content.
    """

    key: FieldTemplate | Callable[[Any], str | bytes | None] | None = None
    value: Callable[[Any], Any] | None = None
    read: Callable[[bytes], Any] | None = None
    where: str = "write_kafka"
    too_large: TooLarge = "fail"
    limit_bytes: int = DEFAULTS[REQUEST]

    def __call__(self, element: Any) -> Record:
        """Raises `FunctionFailed` for a value that is not JSON, a wrong key, and errors of the functions."""
        item = self._item(element)
        key, headers = None, Headers()
        if isinstance(item, Result | DeadLetter):
            key, headers = item.record_key, headers_of(item)
        if self.key is not None:
            with failing_as(self.where, "key", item):
                key = self._key(item)
        with failing_as(self.where, "value", item):
            if isinstance(item, DeadLetter) and self.value is None:
                return fitting_record(replace(item, record_key=key), self.limit_bytes)
            value = item if self.value is None else self.value(item)
            return key, json_line(value).encode(), headers

    def refused(self, element: Any, why: str) -> DeadLetter:
        item = self._item(element)
        if self.too_large == "fail":
            with failing_as(self.where, "writing", item):
                raise TooLargeForSink(f"{why}; {ADVICE}")
        return letter_of(item, TooLargeForSink(why))

    def _item(self, element: Any) -> Any:
        return element if self.read is None else self.read(bytes(element))

    def _key(self, item: Any) -> bytes | None:
        if isinstance(self.key, FieldTemplate):
            fields = fields_of(item)
            try:
                return self.key.render(fields).encode()
            except FieldMissing:
                if fields_in(self.key.text) <= fields.keys():
                    return None  # They are null or empty.
                raise
        made = self.key(item) if self.key is not None else None
        if made is None or isinstance(made, bytes):
            return made
        if not isinstance(made, str):
            raise TypeError(f"the key must be text, bytes or None, found {type(made).__name__}")
        return made.encode("utf-8", "replace")


def letter_of(item: Any, error: TooLargeForSink) -> DeadLetter:
    """For an element that is too large; without a record, the input is its JSON."""
    if isinstance(item, Result):
        return too_large(item, str(error))
    if not isinstance(item, DeadLetter):
        made = decode(EncodeEvent(ReadEvent())(item))
        if isinstance(made, Event):
            return refused(made, error)
        return replace(made, cause=error.cause, detail=detail_text(str(error)))
    before = f"it was a dead letter before: {item.cause}: {item.detail}"
    return replace(item, cause=error.cause, detail=detail_text(f"{error}; {before}"))


def fields_of(item: Any) -> Mapping[str, Any]:
    """Entries of a dict or model, fields of a result's event, or `text`."""
    if isinstance(item, Result):
        return item.fields
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, BaseModel):
        item = read_json(json_line(item).encode())
    return item if isinstance(item, Mapping) else {}


def key_of(given: KeyOf | None, holds: type | None) -> FieldTemplate | Callable[[Any], Any] | None:
    """Check and convert `key=` for a stream of `holds` objects (None: unknown). Raises `SettingError`."""
    if given is None:
        return None
    if isinstance(given, str):
        if holds is DeadLetter:
            raise SettingError(
                "write_kafka: key: a dead letter has no fields for a template; leave key out (it keeps the "
                "key of its record), or give a function"
            )
        if "{{" not in given:
            word = given.strip() if given.strip().isidentifier() else "user"
            raise SettingError(
                f"write_kafka: key: {given[:80]!r} names no field; write a template such as "
                f"'{{{{ {word} }}}}', or give a function"
            )
        return FieldTemplate(given, what="key", required=True)
    if callable(given):
        return given
    raise SettingError(
        f"write_kafka: key: expected a template or a function, found a value of type {type(given).__name__}"
    )
