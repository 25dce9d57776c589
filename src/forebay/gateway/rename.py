"""Replaces the model's name in a request's body."""

from __future__ import annotations

from dataclasses import replace

import orjson

from forebay.gateway.asked import Asked
from forebay.gateway.routes import ROUTES


def with_model(asked: Asked, name: str) -> Asked:
    """`asked` for the model `name`. The body is not read again: it may be large."""
    written = name.encode() if ROUTES[asked.path].form else orjson.dumps(name)
    body = b"".join((asked.body[: asked.model_begin], written, asked.body[asked.model_end :]))
    return replace(asked, model=name, body=body, model_end=asked.model_begin + len(written))
