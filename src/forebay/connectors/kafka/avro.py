"""Avro values with a schema registry, read by confluent-kafka's own deserialiser, as JSON values.

Readers of Avro trust what they read: a few bytes can name a list of a billion items, and a recursive schema
can nest as deep as the record is long, which ends a process whose reader is written in C. So every value is
walked first, without building it, within bounds that follow from its size (`check_value`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from forebay.connectors.formats import MAX_DEPTH
from forebay.connectors.kafka.registry import Patience, Registry, registry_client
from forebay.errors import ForebayError, MalformedRecord
from forebay.records import JSON

MAX_REFERENCE_DEPTH = 20
"""Schemas may refer to one another in a circle."""


class AvroValues:
    """Reads values that name their schema by an id in front of them, or in the header `__value_schema_id`.

    Schemas are fetched once, by id. Rules and migrations that a registry may hold beside a schema are not
    applied: a value is read as it was written.
    """

    def __init__(self, registry: Registry, patience: Patience | None = None) -> None:
        """Raises `SetupError` without the extra `avro`, `SettingError` where the secret is missing."""
        self._client = registry_client(registry, patience or Patience(registry.url))
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        # Without a subject nothing is asked of the registry but the schema of an id.
        conf = {"subject.name.strategy": _no_subject}
        self._deserialize: Any = AvroDeserializer(self._client, conf=conf)
        self._parsed: dict[int | str, tuple[Any, dict[str, Any]]] = {}

    def fields(self, data: bytes, headers: Mapping[str, bytes]) -> Mapping[str, JSON]:
        """The fields of the record in `data`. Blocks while the registry is away.

        Raises `MalformedRecord` where `data` is no such value, whatever its content; `RegistryAway` and
        `RegistryRefused` where that cannot be known, because its schema cannot be had.
        """
        from confluent_kafka.schema_registry import dual_schema_id_deserializer
        from confluent_kafka.schema_registry.serde import SchemaId
        from confluent_kafka.serialization import MessageField, SerializationContext

        context = SerializationContext("", MessageField.VALUE, dict(headers))
        named = SchemaId("AVRO")
        try:
            start = len(data) - len(dual_schema_id_deserializer(data, context, named).read())
        except Exception as error:
            raise MalformedRecord(f"not Avro with a schema's id: {_words(error)}") from None
        schema, names = self._schema(named.id if named.id is not None else str(named.guid))
        check_value(schema, names, data, start)
        try:
            value = as_json(self._deserialize(data, context))
        except ForebayError:
            raise
        except Exception as error:
            raise MalformedRecord(f"not Avro of its schema: {_words(error)}") from None
        if not isinstance(value, dict):
            raise MalformedRecord("an Avro record is needed, found another type")
        return value

    def _schema(self, id: int | str) -> tuple[Any, dict[str, Any]]:
        """The parsed schema of `id`, and the named types in it."""
        if id not in self._parsed:
            get = self._client.get_schema if isinstance(id, int) else self._client.get_schema_by_guid
            names: dict[str, Any] = {}
            self._parsed[id] = (self._parse(get(id), names), names)
        return self._parsed[id]

    def _parse(self, schema: Any, names: dict[str, Any], depth: int = 0) -> Any:
        from fastavro import parse_schema

        if depth > MAX_REFERENCE_DEPTH:
            raise MalformedRecord(
                f"the value's schema cannot be used: references lead {depth} schemas deep, "
                f"the limit is {MAX_REFERENCE_DEPTH}"
            )
        for reference in schema.references or ():
            if reference.name not in names:
                found = self._client.get_version(reference.subject, reference.version)
                self._parse(found.schema, names, depth + 1)
        try:
            return parse_schema(_schema_value(schema.schema_str), named_schemas=names)
        except Exception as error:
            raise MalformedRecord(f"the value's schema cannot be used: {_words(error)}") from None


def as_json(value: Any) -> JSON:
    """A value as Avro's reader gives it, made of what JSON has.

    Bytes and fixed become base64 text, decimals text of the exact number, dates, times and timestamps text of
    ISO 8601 (a timestamp in UTC, a local one without a zone), UUIDs text, numbers that are not finite null.
    """
    if isinstance(value, dict):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value


def _schema_value(text: str) -> Any:
    """A schema may stand as the bare name of a type."""
    return orjson.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()


def _no_subject(context: Any, record_name: str | None) -> None:
    return None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


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
