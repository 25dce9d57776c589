"""Avro values with a schema registry, read by confluent-kafka's own deserialiser, as JSON values."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

from forebay.connectors.kafka.avro_bounds import check_value
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
