"""Replaces the model's name in a request's body."""

from __future__ import annotations

from dataclasses import replace

import orjson

from forebay.gateway.asked import Asked
from forebay.gateway.form import form_fields


def with_model(asked: Asked, name: str, *, content_type: bytes) -> Asked:
    """`asked` for the model `name`: forms keep all other bytes, JSON keeps its values."""
    if content_type.lower().lstrip().startswith(b"multipart/"):
        field = next(one for one in form_fields(content_type, asked.body) if one.name == "model")
        body = asked.body[: field.begin] + name.encode() + asked.body[field.end :]
        return replace(asked, model=name, body=body)
    document = orjson.loads(asked.body)
    return replace(asked, model=name, body=orjson.dumps({**document, "model": name}))
