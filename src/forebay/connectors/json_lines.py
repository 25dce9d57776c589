"""Results and dead letters as JSON lines, and dead letters back."""

from __future__ import annotations

import base64
import binascii
from dataclasses import fields
from typing import TYPE_CHECKING

import orjson

from forebay.codec import decode
from forebay.errors import MalformedRecord
from forebay.records import DeadLetter, Result

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

WRITTEN = tuple(field.name for field in fields(Result) if field.name not in {"record_key", "headers"})
MAX_TIME_MS = 2**53
"""Farther from 1970 than any event, and a whole number in every JSON reader."""


def result_json(result: Result) -> str:
    """One line of JSON, without the record's key and headers, which are bytes of another system.

    Raises `MalformedRecord` where a field is not a JSON value.
    """
    try:
        return orjson.dumps({name: getattr(result, name) for name in WRITTEN}).decode("utf-8")
    except TypeError as error:
        raise MalformedRecord(f"the result {result.id} cannot be written as JSON: {error}") from None


def dead_letter_json(letter: DeadLetter) -> str:
    """One line of JSON. The untouched record stands in `input` where it is UTF-8, else in `input_base64`."""
    line: dict[str, object] = {
        "cause": letter.cause,
        "detail": letter.detail.encode("utf-8", "replace").decode("utf-8"),
        "attempts": letter.attempts,
        "id": letter.id,
        "key": letter.key,
        "time_ms": letter.time_ms,
        "position": letter.position,
    }
    try:
        line["input"] = letter.raw.decode("utf-8")
    except UnicodeDecodeError:
        line["input_base64"] = base64.b64encode(letter.raw).decode("ascii")
    return orjson.dumps(line).decode("utf-8")


def parse_dead_letter(line: bytes | str) -> DeadLetter:
    """The dead letter that `dead_letter_json` wrote; `MalformedRecord` where it is none."""
    try:
        value = orjson.loads(line)
        if "input" in value:
            raw = value["input"].encode("utf-8")
        else:
            raw = base64.b64decode(value["input_base64"], validate=True)
        return DeadLetter(
            raw=raw,
            cause=str(value["cause"]),
            detail=str(value["detail"]),
            attempts=int(value.get("attempts", 0)),
            id=value.get("id"),
            key=value.get("key"),
            time_ms=_time_ms(value.get("time_ms")),
            position=value.get("position"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise MalformedRecord(f"not a dead letter: {type(error).__name__}: {error}") from None


def _time_ms(value: object) -> int | None:
    if value is None or (type(value) is int and abs(value) <= MAX_TIME_MS):
        return value
    raise ValueError("time_ms is no time")


def result_lines(results: DataStream) -> DataStream:
    """Each result as one line of JSON, at the stream's own parallelism: order within a subtask stays."""
    from pyflink.common import Types

    lines = results.map(lambda data: result_json(decode(data)), Types.STRING()).name("results as JSON")
    return lines.set_parallelism(results._j_data_stream.getParallelism())


def dead_letter_lines(letters: DataStream) -> DataStream:
    """Each dead letter as one line of JSON, at the stream's own parallelism."""
    from pyflink.common import Types

    lines = letters.map(lambda data: dead_letter_json(decode(data)), Types.STRING())
    return lines.name("dead letters as JSON").set_parallelism(letters._j_data_stream.getParallelism())
