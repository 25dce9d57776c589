"""The kinds of value that a pipeline file holds: those of every such file, and its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

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
