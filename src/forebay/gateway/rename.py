"""Replaces the model's name in a request's body."""

from __future__ import annotations

from dataclasses import replace

import orjson

from forebay.gateway.asked import WRITABLE_DEPTH, Asked
from forebay.gateway.body import deeper_than
from forebay.gateway.form import form_fields
from forebay.gateway.refusal import Refusal


def with_model(asked: Asked, name: str, *, content_type: bytes) -> Asked:
    """`asked` for the model `name`: forms keep all other bytes, JSON keeps its values.

    Raises `Refusal` (400) for JSON that is nested too deeply.
    """
    if content_type.lower().lstrip().startswith(b"multipart/"):
        field = next(one for one in form_fields(content_type, asked.body) if one.name == "model")
        body = asked.body[: field.begin] + name.encode() + asked.body[field.end :]
        return replace(asked, model=name, body=body)
    document = orjson.loads(asked.body)
    if deeper_than(document, WRITABLE_DEPTH):
        message = f"the body is nested deeper than {WRITABLE_DEPTH} levels, which an alias of a model allows"
        raise Refusal(400, "invalid_json", message)
    return replace(asked, model=name, body=orjson.dumps({**document, "model": name}))
