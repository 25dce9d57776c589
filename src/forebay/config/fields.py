"""The kinds of value that a pipeline file holds: those of every such file, and its own."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.connectors.event_time import EventTime
from forebay.documents.fields import (
    AnyInt,
    HttpUrl,
    LocalPath,
    Model,
    NotNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Secret,
    SecretField,
    Switch,
    url,
    wrong,
)
from forebay.errors import SettingError

__all__ = [
    "PUBLIC_HEADERS",
    "AnyInt",
    "FieldPath",
    "HeaderName",
    "HeaderText",
    "Headers",
    "HttpUrl",
    "LocalPath",
    "Model",
    "NotNegativeFloat",
    "OneCharacter",
    "PositiveFloat",
    "PositiveInt",
    "Scalar",
    "Secret",
    "SecretField",
    "Switch",
    "WebSocketUrl",
    "wrong",
]

PUBLIC_HEADERS = frozenset(
    ("accept", "accept-encoding", "accept-language", "cache-control", "content-type", "origin", "user-agent")
)
"""Headers whose values may stand in a pipeline file; every other one may hold a secret."""

WebSocketUrl = Annotated[str, url(("ws", "wss"))]
FieldPath = Annotated[str, Field(min_length=1, max_length=500)]
"""A field of the event, dots for nesting: `user.name`."""
OneCharacter = Annotated[str, Field(min_length=1, max_length=1)]


def _scalar(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise wrong("expected a text, a number, true or false")
    return value


Scalar = Annotated[str | int | float | bool, BeforeValidator(_scalar)]


def _public(headers: Any) -> Any:
    if isinstance(headers, dict):
        for name, value in headers.items():
            if str(name).lower() not in PUBLIC_HEADERS and not isinstance(value, dict | Secret):
                raise wrong(
                    f"{str(name)[:60]!r}: expected {{env: NAME}} or {{file: PATH}}, for it may hold a "
                    f"secret; a text is taken for {', '.join(sorted(PUBLIC_HEADERS))}"
                )
    return headers


HeaderText = Annotated[str, Field(max_length=4096, pattern=r"^[\x20-\x7e]*$")]
HeaderName = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
Headers = Annotated[dict[HeaderName, HeaderText | Secret], BeforeValidator(_public), Field(repr=False)]


def _time_format(value: str) -> str:
    try:
        EventTime("time", value)
    except SettingError as error:
        raise wrong(f"expected another format; {error}") from None
    if "%" in value:
        try:
            datetime.strptime("", value)
        except (ValueError, re.error) as error:
            # That nothing is no such time is right; all else is wrong with the pattern.
            if not str(error).startswith("time data"):
                raise wrong(f"expected a pattern that strptime takes; {error}") from None
    return value


class Timed(Model):
    """What sources of recorded events share."""

    time: FieldPath | None = Field(
        None, description="Field that holds an event's time (dots for nesting: `meta.dt`); null: it has none."
    )
    time_format: Annotated[str, AfterValidator(_time_format)] = Field(
        "iso8601",
        description="How `time` is written: `iso8601`, `unix_s`, `unix_ms`, `unix_us` (numbers since 1970), "
        "or a pattern of Python's `strptime` such as `%d/%m/%Y %H:%M`. A time without a zone is UTC.",
    )
    limit: PositiveInt | None = Field(None, description="Stop after this many records; null: no limit.")
    max_record_bytes: PositiveInt = Field(
        1_048_576, le=16_777_216, description="A longer record becomes a dead letter."
    )

    def event_time(self) -> EventTime | None:
        """How events get their time; None where they have none."""
        return EventTime(self.time, self.time_format) if self.time is not None else None
