"""Reads and parses request bodies within limits of size, time and nesting."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from forebay.engine.protocol import KV_TRANSFER
from forebay.gateway.asgi import HungUp, Receive, TimeLimit, TimeOver
from forebay.gateway.refusal import Refusal, invalid_value, no_room, slow_body, too_large
from forebay.json_numbers import deeper_than

TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.S)
CONTAINERS = re.compile(rb"[\[{]")
MAX_CONTAINERS = 100_000
"""Brackets in a body: each becomes an object of about 60 bytes when parsed."""
TRANSFERS = (
    KV_TRANSFER,
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
)
"""Fields that make an engine load a KV cache or encoded image from a given address.

vLLM, SGLang (srt/entrypoints/openai/protocol.py), TensorRT-LLM (serve/openai_protocol.py).
"""


class Room:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0
        self._held_by: Counter[str] = Counter()

    @contextmanager
    def share(self, key: str | None = None) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves more bytes until the block ends, or raises `Refusal` (503) over the
        limit. A `key` gets at most as many as it leaves to others.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            left = self._max_bytes - self.held - size
            if left < (0 if key is None else self._held_by[key] + size):
                raise no_room()
            taken += size
            self.held += size
            if key is not None:
                self._held_by[key] += size

        try:
            yield take
        finally:
            self.held -= taken
            if key is not None:
                self._held_by[key] -= taken
                if not self._held_by[key]:
                    del self._held_by[key]


async def read_body(
    headers: Mapping[bytes, bytes],
    receive: Receive,
    take: Callable[[int], None],
    *,
    max_bytes: int,
    within_s: float,
) -> bytes:
    """Read the whole body. `take` reserves bytes before they are kept.

    Raises `Refusal` for a body that is too large or slow, `HungUp` for one that ends early.
    """
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    try:
        with TimeLimit(within_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                part = message.get("body", b"")
                if len(body) + len(part) > max_bytes:
                    raise too_large(max_bytes)
                take(len(part))
                body += part
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeOver:
        raise slow_body(within_s) from None


async def drop_body(receive: Receive, within_s: float) -> None:
    try:
        with TimeLimit(within_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeOver:
        return


def parse_object(body: bytes, *, max_depth: int) -> dict[str, Any]:
    """Parse a JSON object. Raises `Refusal` (400), also for deep nesting or a field of `TRANSFERS`."""
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MAX_CONTAINERS:
        # Texts quote code and JSON.
        brackets = len(CONTAINERS.findall(TEXTS.sub(b"", body)))
    if brackets > MAX_CONTAINERS:
        raise _invalid(f"the body holds more than {MAX_CONTAINERS} lists and objects")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _invalid(f"the body: expected a JSON object, found {kind_of(document)}")
    if brackets > max_depth and deeper_than(document, max_depth):
        raise _invalid(f"the body is nested deeper than {max_depth} levels")
    check_transfers(document)
    return document


def check_transfers(document: Mapping[str, Any]) -> None:
    """Reject fields with which a replica would connect to any address, and use another prompt's KV cache."""
    arguments = document.get("vllm_xargs")
    for where, fields in (("", document), ("vllm_xargs.", arguments if isinstance(arguments, dict) else {})):
        for name in TRANSFERS:
            if fields.get(name) is not None:
                message = "expected none: clients must not choose which KV caches are handed over"
                raise invalid_value(f"{where}{name}", message)


def _invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_json", message)


def kind_of(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return "a text" if value else "an empty text"
        case int() | float():
            return "a number"
        case list():
            return "a list" if value else "an empty list"
    return "an object"
