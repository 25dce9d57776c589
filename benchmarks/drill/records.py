"""Unusual records: bytes that no decoder accepts, and sizes near every limit."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from benchmarks.drill.scenario import Scenario
from forebay.connectors.formats import MAX_RECORD_BYTES

Flaw = Literal["refused", "not UTF-8", "too long", "long"]
"""`refused`: the engine answers 400."""
FLAWS: tuple[Flaw, ...] = ("refused", "not UTF-8", "too long", "long")
NOT_TEXT_BYTES = 900_000
"""In base64, more than a Kafka producer sends."""
REFUSED = "((fault:400))"
PAD = "pad"
NUMBERED = re.compile(rb'\s*\{"n":\s*(\d+)|(\d+),')
"""The beginning of an event: as JSON, or as a row of CSV."""


def flaw_of(scenario: Scenario, number: int) -> Flaw | None:
    if not scenario.bad or number % scenario.bad != scenario.bad - 1:
        return None
    flaws = FLAWS
    if scenario.source in {"sse", "websocket"}:
        flaws = ("refused",)
    elif scenario.source == "csv":
        # A field has at most 128 KiB.
        flaws = ("refused", "not UTF-8", "too long")
    return flaws[number // scenario.bad % len(flaws)]


def cause_of(scenario: Scenario, flaw: Flaw | None) -> str | None:
    """The cause of such an event's dead letter; None: it has a result."""
    match flaw:
        case "refused":
            return "bad_request"
        case "not UTF-8" | "too long":
            return "malformed_record"
        case "long" if scenario.sink == "kafka":
            return "too_large_for_sink"
    return None


def json_bytes(event: Mapping[str, Any], flaw: Flaw | None) -> bytes:
    """The event as a line of JSON, without line end."""
    if flaw is None or flaw == "refused":
        return orjson.dumps(event)
    return orjson.dumps({**event, PAD: ""}).removesuffix(b'"}') + _filling(event, flaw) + b'"}'


def row_bytes(event: Mapping[str, Any], flaw: Flaw | None) -> bytes:
    """The event as a row of CSV with line end; its last column is `PAD`."""
    out = io.StringIO()
    csv.writer(out).writerow([*event.values(), ""])
    filling = b"" if flaw is None or flaw == "refused" else _filling(event, flaw)
    return out.getvalue().encode().removesuffix(b"\r\n") + filling + b"\r\n"


def _filling(event: Mapping[str, Any], flaw: Flaw) -> bytes:
    match flaw:
        case "not UTF-8":
            return b"\xff" * NOT_TEXT_BYTES
        case "too long":
            return b"x" * MAX_RECORD_BYTES
    return b"x" * (MAX_RECORD_BYTES - len(orjson.dumps({**event, PAD: ""})))


def input_number(letter: Mapping[str, Any]) -> str | None:
    raw = str(letter.get("input") or "").encode()
    if "input_base64" in letter:
        # Base64 has a multiple of four characters; a truncated one may have fewer.
        raw = base64.b64decode(str(letter["input_base64"])[:400])
    found = NUMBERED.match(raw)
    return found and (found[1] or found[2]).decode()
