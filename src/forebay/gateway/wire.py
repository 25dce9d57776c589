"""Reads engines' errors, and writes the end of a broken stream."""

from __future__ import annotations

from typing import Any, Literal

import orjson

from forebay.gateway.refusal import SERVER, anthropic_error_body, error_body
from forebay.gateway.routes import Dialect

BROKEN_OFF = "the replica broke off its answer"
OUT_OF_TIME = "the answer is cut off: its time is over"
STOPPED = "the answer is cut off: the gateway stops"


def missing_in(body: bytes) -> Literal["model", "route"] | None:
    """What an engine's 404 means: no such model, no such path, or None, such as for a response that is not
    stored.

    vLLM names the parameter or writes "The model `m` does not exist."; an unknown path is "Not Found", as in
    FastAPI. Other servers answer an unknown path without JSON.
    """
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "route"
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if not isinstance(error, dict):
        error = {"message": document.get("detail") if error is None else error}
    message = error.get("message")
    if not isinstance(message, str):
        return None
    words = message.strip().rstrip(".").lower()
    if words == "not found":
        return "route"
    if error.get("param") == "model":
        return "model"
    of_a_model = words.startswith(("the model ", "model "))
    return "model" if of_a_model and words.endswith(("does not exist", "not found")) else None


def broken_off(dialect: Dialect, events: int, why: str = BROKEN_OFF) -> bytes:
    """The last event of a stream that broke off after `events` events, in the format of the API."""
    code = "replica_failed" if why == BROKEN_OFF else "cut_off"
    match dialect:
        case "anthropic":
            event = b"event: error\ndata: " + anthropic_error_body(502, why)
        case "responses":
            error = {"type": "error", "code": code, "message": why, "param": None}
            event = b"event: error\ndata: " + orjson.dumps({**error, "sequence_number": events})
        case _:
            event = b"data: " + error_body(code, why, kind=SERVER)
    return b"\n\n" + event + b"\n\n"
