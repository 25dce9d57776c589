"""Whether bytes are a value of an Avro schema, found out without building the value. Pure.

Readers of Avro trust what they read: a few bytes can name a list of a billion items, and a recursive schema
can nest as deep as the record is long, which ends a process whose reader is written in C. So every value is
walked first, within bounds that follow from its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.connectors.formats import MAX_DEPTH
from forebay.errors import MalformedRecord

MAX_DECIMAL_BYTES = 1024
"""Far beyond any amount; the time that a decimal takes grows with the square of its digits."""
MOST_EMPTY = 10_000
VALUES_PER_BYTE = 4
"""Some records in each other can name more values, without a byte in them, than a day has time for."""
WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
NUMBERS = frozenset(("int", "long"))
TEXTS = frozenset(("string", "bytes"))


def check_value(schema: Any, names: Mapping[str, Any], data: bytes, start: int = 0) -> None:
    """Raise `MalformedRecord` where `data` from `start` on is not exactly one value of `schema`.

    `schema` is a parsed one, and `names` has the named types that it speaks of. Refused are also values that
    are nested deeper than 200 levels, lists with more items in all than the record has bytes, and values in
    all beyond 10,000 and four for each byte.
    """
    walk = _Walk(names, data)
    end = walk.value(schema, start, 0)
    if end != len(data):
        raise MalformedRecord(f"not Avro of its schema: {len(data) - end} bytes are left over")


class _Walk:
    def __init__(self, names: Mapping[str, Any], data: bytes) -> None:
        self._names = names
        self._data = data
        self._items = 0
        self._left = MOST_EMPTY + VALUES_PER_BYTE * len(data)

    def value(self, schema: Any, at: int, depth: int) -> int:
        """Where the value that begins at `at` ends."""
        self._left -= 1
        if self._left < 0:
            raise MalformedRecord("its schema makes more values of the record than can be read")
        if isinstance(schema, list):
            branch, at = self._number(at)
            return self.value(_chosen(schema, branch, "union"), at, depth)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.value(kind, at, depth)
        if kind in WIDTHS:
            return self._past(at, WIDTHS[kind])
        if kind in NUMBERS:
            return self._number(at)[1]
        if kind in TEXTS:
            length, at = self._number(at)
            if length > MAX_DECIMAL_BYTES:
                _refuse_decimal(schema, length)
            return self._past(at, length)
        if kind == "fixed":
            _refuse_decimal(schema, schema["size"])
            return self._past(at, schema["size"])
        if kind == "enum":
            number, at = self._number(at)
            _chosen(schema["symbols"], number, "enum")
            return at
        if depth >= MAX_DEPTH:
            raise MalformedRecord(f"the record is nested deeper than {MAX_DEPTH} levels")
        if kind in ("record", "error"):
            for field in schema["fields"]:
                at = self.value(field["type"], at, depth + 1)
            return at
        if kind in ("array", "map"):
            return self._blocks(schema, at, depth + 1, keyed=kind == "map")
        if kind in self._names:
            return self.value(self._names[kind], at, depth)
        raise MalformedRecord(f"its schema speaks of an unknown type {str(kind)[:80]!r}")

    def _blocks(self, schema: dict[str, Any], at: int, depth: int, *, keyed: bool) -> int:
        items = schema["values" if keyed else "items"]
        while True:
            count, at = self._number(at)
            if count == 0:
                return at
            if count < 0:
                count = -count
                _, at = self._number(at)
            self._items += count
            if self._items > len(self._data):
                raise MalformedRecord("not Avro of its schema: it has more items than bytes")
            for _ in range(count):
                if keyed:
                    length, at = self._number(at)
                    at = self._past(at, length)
                at = self.value(items, at, depth)

    def _past(self, at: int, length: int) -> int:
        if length < 0 or at + length > len(self._data):
            raise MalformedRecord(
                f"not Avro of its schema: {length} bytes are wanted, {len(self._data) - at} are left"
            )
        return at + length

    def _number(self, at: int) -> tuple[int, int]:
        """A zigzag number of at most 64 bits, and where it ends."""
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
        raise MalformedRecord("not Avro of its schema: a number has no end within 64 bits")


def _chosen(choices: list[Any], number: int, what: str) -> Any:
    if not 0 <= number < len(choices):
        raise MalformedRecord(
            f"not Avro of its schema: the {what} has {len(choices)} choices, found {number}"
        )
    return choices[number]


def _refuse_decimal(schema: Any, length: int) -> None:
    decimal = isinstance(schema, dict) and schema.get("logicalType") == "decimal"
    if decimal and length > MAX_DECIMAL_BYTES:
        raise MalformedRecord(f"a decimal has {length} bytes, the limit is {MAX_DECIMAL_BYTES}")
