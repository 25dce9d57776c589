"""Avro values as JSON values.

Other readers trust the data: a few bytes can claim a billion items, and a recursive schema crashes a reader
in C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from forebay.connectors.formats import MAX_DEPTH
from forebay.connectors.kafka.json_scalars import (
    UnreadableValue,
    bytes_value,
    date_value,
    decimal_value,
    duration_value,
    float_value,
    moment_value,
    time_value,
)
from forebay.records import JSON

MAX_EMPTY = 10_000
VALUES_PER_BYTE = 4
"""Nested records without bytes could expand for more than a day."""
PRIMITIVE = frozenset(("null", "boolean", "int", "long", "float", "double", "string", "bytes"))
KINDS = PRIMITIVE | {"fixed", "enum", "record", "error", "array", "map"}
MS, US, NS = 1_000, 1_000_000, 1_000_000_000

NUMBERS: Mapping[str, Callable[[int], JSON]] = {
    "int date": date_value,
    "int time-millis": lambda value: time_value(value, MS),
    "long time-micros": lambda value: time_value(value, US),
    "long timestamp-millis": lambda value: moment_value(value, MS),
    "long timestamp-micros": lambda value: moment_value(value, US),
    "long timestamp-nanos": lambda value: moment_value(value, NS),
    "long local-timestamp-millis": lambda value: moment_value(value, MS, ""),
    "long local-timestamp-micros": lambda value: moment_value(value, US, ""),
    "long local-timestamp-nanos": lambda value: moment_value(value, NS, ""),
}
"""Logical types, with the type that they require; others are ignored, as specified."""


def read_value(schema: Any, names: Mapping[str, Any], data: bytes) -> JSON:
    """Raises `UnreadableValue` if the bytes are not exactly one value, or it is too deep or expands too
    much.

    Bytes become base64, decimals exact text, times ISO 8601.
    """
    value, end = _AvroReader(names, data).value(schema, 0, 0)
    if end != len(data):
        raise UnreadableValue(f"{len(data) - end} bytes are left over")
    return value


class _AvroReader:
    def __init__(self, names: Mapping[str, Any], data: bytes) -> None:
        self._names = names
        self._data = data
        self._items = 0
        self._left = MAX_EMPTY + VALUES_PER_BYTE * len(data)

    def value(self, schema: Any, at: int, depth: int) -> tuple[JSON, int]:
        self._left -= 1
        if self._left < 0:
            raise UnreadableValue("its schema expands the record to more values than are allowed")
        while True:
            if isinstance(schema, list):
                branch, at = self._number(at)
                schema = _chosen(schema, branch, "union")
                continue
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, dict | list):
                schema = kind
            elif kind not in KINDS and kind in self._names:
                schema = self._names[kind]
            else:
                break
        match kind:
            case "null":
                return None, at
            case "boolean":
                end = self._past(at, 1)
                return self._data[at] != 0, end
            case "int" | "long":
                number, at = self._number(at)
                read = NUMBERS.get(f"{kind} {_logical(schema)}")
                return (number if read is None else read(number)), at
            case "float" | "double":
                form, size = ("<f", 4) if kind == "float" else ("<d", 8)
                end = self._past(at, size)
                return float_value(struct.unpack_from(form, self._data, at)[0]), end
            case "string":
                return self._text(at)
            case "bytes":
                length, at = self._number(at)
                end = self._past(at, length)
                return self._bytes(schema, self._data[at:end]), end
            case "fixed":
                end = self._past(at, schema["size"])
                return self._fixed(schema, self._data[at:end]), end
            case "enum":
                number, at = self._number(at)
                return _chosen(schema["symbols"], number, "enum"), at
        if depth >= MAX_DEPTH:
            raise UnreadableValue(f"the record is nested deeper than {MAX_DEPTH} levels")
        match kind:
            case "record" | "error":
                return self._record(schema["fields"], at, depth + 1)
            case "array":
                return self._array(schema["items"], at, depth + 1)
            case "map":
                return self._map(schema["values"], at, depth + 1)
        raise UnreadableValue(f"its schema names an unknown type {str(kind)[:80]!r}")

    def _record(self, fields: list[dict[str, Any]], at: int, depth: int) -> tuple[JSON, int]:
        found: dict[str, JSON] = {}
        for field in fields:
            name = field["name"]
            try:
                found[name], at = self.value(field["type"], at, depth)
            except UnreadableValue as error:
                error.at.append(name)
                raise
        return found, at

    def _array(self, items: Any, at: int, depth: int) -> tuple[JSON, int]:
        found: list[JSON] = []
        while True:
            count, at = self._block(at)
            if count == 0:
                return found, at
            for _ in range(count):
                value, at = self.value(items, at, depth)
                found.append(value)

    def _map(self, values: Any, at: int, depth: int) -> tuple[JSON, int]:
        found: dict[str, JSON] = {}
        while True:
            count, at = self._block(at)
            if count == 0:
                return found, at
            for _ in range(count):
                name, at = self._text(at)
                found[name], at = self.value(values, at, depth)

    def _block(self, at: int) -> tuple[int, int]:
        count, at = self._number(at)
        if count < 0:
            count = -count
            _, at = self._number(at)
        self._items += count
        if self._items > len(self._data):
            raise UnreadableValue("it has more items than bytes")
        return count, at

    def _text(self, at: int) -> tuple[str, int]:
        length, at = self._number(at)
        end = self._past(at, length)
        try:
            return self._data[at:end].decode("utf-8"), end
        except UnicodeDecodeError as error:
            raise UnreadableValue(f"a text is not UTF-8: {error.reason} at byte {error.start}") from None

    def _bytes(self, schema: Any, data: bytes) -> JSON:
        match _logical(schema):
            case "decimal":
                return decimal_value(data, schema.get("scale", 0))
            case "big-decimal":
                inner = _AvroReader({}, data)
                length, at = inner._number(0)
                end = inner._past(at, length)
                scale, _ = inner._number(end)
                return decimal_value(data[at:end], scale)
        return bytes_value(data)

    def _fixed(self, schema: Any, data: bytes) -> JSON:
        match _logical(schema), len(data):
            case "decimal", _:
                return decimal_value(data, schema.get("scale", 0))
            case "duration", 12:
                return duration_value(*struct.unpack("<III", data))
            case "uuid", 16:
                return str(UUID(bytes=data))
        return bytes_value(data)

    def _past(self, at: int, length: int) -> int:
        if length < 0 or at + length > len(self._data):
            raise UnreadableValue(f"{length} bytes are needed, {len(self._data) - at} are left")
        return at + length

    def _number(self, at: int) -> tuple[int, int]:
        value = shift = 0
        data = self._data
        while at < len(data) and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value >= 1 << 64:
                    break
                return (value >> 1) ^ -(value & 1), at
            shift += 7
        raise UnreadableValue("a number has no end within 64 bits")


def _logical(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _chosen(choices: list[Any], number: int, what: str) -> Any:
    if not 0 <= number < len(choices):
        raise UnreadableValue(f"the {what} has {len(choices)} choices, found {number}")
    return choices[number]
