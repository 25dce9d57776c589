"""Reads token counts and errors of engines' answers, and writes the end of a broken stream."""

from __future__ import annotations

import re
from typing import Any, Literal

import orjson

from forebay.gateway.refusal import SERVER, anthropic_error_body, error_body
from forebay.gateway.routes import Dialect
from forebay.records import Usage

PROMPT = re.compile(rb'"(?:prompt|input)_tokens" ?: ?([0-9]{1,9})')
COMPLETION = re.compile(rb'"(?:completion|output)_tokens" ?: ?([0-9]{1,9})')
CACHED = re.compile(rb'"cached_tokens" ?: ?([0-9]{1,9})')
TOTAL = re.compile(rb'"total_tokens" ?: ?([0-9]{1,9})')
CACHE_READ = re.compile(rb'"cache_read_input_tokens" ?: ?([0-9]{1,9})')
CACHE_CREATION = re.compile(rb'"cache_creation_input_tokens" ?: ?([0-9]{1,9})')


def counts_in(tail: bytes) -> Usage | None:
    prompt, completion, total = (_last(pattern, tail) for pattern in (PROMPT, COMPLETION, TOTAL))
    if prompt is None and total is None:
        return None
    read, created = _last(CACHE_READ, tail), _last(CACHE_CREATION, tail)
    cached = _last(CACHED, tail) if read is None else read
    # Anthropic's input_tokens exclude cached ones; some rerankers count only the total.
    sent = (total or 0) - (completion or 0) if prompt is None else prompt + (read or 0) + (created or 0)
    return Usage(max(0, sent), completion or 0, cached or 0)


NO_CHOICES = re.compile(rb'"choices" ?: ?\[ ?\]')
EVENT_END = re.compile(rb"\r?\n\r?\n")
MAX_EVENT_BYTES = 65_536


class UsageFilter:
    def __init__(self) -> None:
        self._rest = b""

    def pass_on(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes; a longer one than `MAX_EVENT_BYTES` is passed on in pieces."""
        data, kept, begin = self._rest + chunk, [], 0
        # The rest of earlier chunks has no end of an event, but may have its beginning.
        for end in EVENT_END.finditer(data, max(0, len(self._rest) - 3)):
            event = data[begin : end.end()]
            if not _is_count(event):
                kept.append(event)
            begin = end.end()
        self._rest = data[begin:]
        if len(self._rest) > MAX_EVENT_BYTES:
            kept.append(self.rest())
        return b"".join(kept)

    def rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest


def _is_count(event: bytes) -> bool:
    return b'"usage"' in event and NO_CHOICES.search(event) is not None


def usage_in(tail: bytes, events: int) -> Usage:
    return counts_in(tail) or Usage(0, events, 0)


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None


BROKEN_OFF = "the replica broke off its answer"
OUT_OF_TIME = "the answer is cut off: its time is over"
STOPPED = "the answer is cut off: the gateway stops"


def missing_in(body: bytes) -> Literal["model", "route"] | None:
    """What an engine's 404 means: no such model, no such path, or None, such as for a response that is not
    stored.

    vLLM names the parameter or writes "The model `m` does not exist."; FastAPI's unknown path is "Not Found".
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
    text = message.strip().rstrip(".").lower()
    if text == "not found":
        return "route"
    if error.get("param") == "model":
        return "model"
    of_a_model = text.startswith(("the model ", "model "))
    return "model" if of_a_model and text.endswith(("does not exist", "not found")) else None


def broken_off(dialect: Dialect, events: int, why: str = BROKEN_OFF) -> bytes:
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
