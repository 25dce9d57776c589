"""The text of an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.errors import MalformedRecord
from forebay.records import JSON, Event

MAX_TEXT_CHARS = 4096
"""No more of a text is looked at, and no more travels."""


@dataclass(frozen=True, slots=True)
class TextField:
    """A field's text, dots for nesting, at most `MAX_TEXT_CHARS` of it; null is no text.

    Raises `MalformedRecord` where the field is missing or is not text.
    """

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
