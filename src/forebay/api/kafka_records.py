"""What is written to Kafka for the objects of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel

from forebay.api.files import json_line
from forebay.connectors.kafka.sink import Record, headers_of
from forebay.engine.prompt import FieldTemplate
from forebay.errors import SettingError
from forebay.records import DeadLetter, Result

KeyOf = str | Callable[[Any], "str | bytes | None"]
"""A template of a text such as `"{{ user }}"`, or a function of the element."""


@dataclass(frozen=True)
class WriteObject:
    """Key, value and headers for an element of a stream. `read` decodes it; None: it is the object itself.

    A result and a dead letter have the key and the headers of their record.
    """

    key: FieldTemplate | Callable[[Any], str | bytes | None] | None = None
    value: Callable[[Any], Any] | None = None
    read: Callable[[bytes], Any] | None = None

    def __call__(self, element: Any) -> Record:
        """Raises `TypeError` for a value that is not JSON and a key that is not text or bytes,
        `TemplateFailed` where the key's template names a field that the element does not have, and whatever
        the functions raise."""
        item = element if self.read is None else self.read(bytes(element))
        key, headers = None, {}
        if isinstance(item, Result | DeadLetter):
            key, headers = item.record_key, headers_of(item)
        if self.key is not None:
            key = self._key(item)
        value = item if self.value is None else self.value(item)
        return key, json_line(value).encode(), headers

    def _key(self, item: Any) -> bytes | None:
        if isinstance(self.key, FieldTemplate):
            return self.key.render(fields_of(item)).encode()
        made = self.key(item) if self.key is not None else None
        if made is None or isinstance(made, bytes):
            return made
        if not isinstance(made, str):
            raise TypeError(f"the key must be text, bytes or None, found {type(made).__name__}")
        return made.encode("utf-8", "replace")


def fields_of(item: Any) -> Mapping[str, Any]:
    """What the template of a key sees: the entries of a dict or a model, the fields of a result's event, the
    text of a text as `text`."""
    if isinstance(item, Result):
        return item.fields
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, BaseModel):
        item = orjson.loads(json_line(item))
    return item if isinstance(item, Mapping) else {}


def key_of(given: KeyOf | None, holds: type | None) -> FieldTemplate | Callable[[Any], Any] | None:
    """`given` as `WriteObject` takes it, for a stream of `holds` objects (None: it is not known). Raises
    `SettingError` where it is neither a template with a field in it nor a function."""
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
        return FieldTemplate(given, what="key")
    if callable(given):
        return given
    raise SettingError(
        f"write_kafka: key: expected a template or a function, found a value of type {type(given).__name__}"
    )
