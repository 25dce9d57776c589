"""Values with a schema in a registry (Avro, JSON Schema, Protobuf) as JSON values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import orjson

from forebay.connectors.formats import json_object
from forebay.connectors.kafka.avro import read_value
from forebay.connectors.kafka.json_scalars import UnreadableValue
from forebay.connectors.kafka.protobuf import NotADescriptor, ProtobufSchema, file_descriptor, message_indexes
from forebay.connectors.kafka.registry import (
    RegistryRefused,
    RegistryRetry,
    SchemaRegistry,
    referenced_schemas,
    registry_client,
)
from forebay.errors import ForebayError, MalformedRecord
from forebay.records import JSON

HEADER = "__value_schema_id"
SERIALIZED = "serialized"

Read = Callable[[bytes, list[int]], JSON]
KINDS = {"AVRO": "Avro", "JSON": "JSON", "PROTOBUF": "Protobuf"}


@cache
def values_of(registry: SchemaRegistry) -> RegistryValues:
    """One per process. Raises as `RegistryValues`."""
    return RegistryValues(registry)


class RegistryValues:
    """Parses values with a schema id in front, or in the header `__value_schema_id`.

    Does not apply rules and migrations, or validate values of a JSON Schema.
    """

    def __init__(self, registry: SchemaRegistry, patience: RegistryRetry | None = None) -> None:
        self._client = registry_client(registry, patience or RegistryRetry(registry.url))
        self._url = registry.url
        self._readers: dict[int | str, tuple[str, Read]] = {}

    def fields(self, data: bytes, headers: Mapping[str, bytes]) -> Mapping[str, JSON]:
        """Blocks while the registry is down. Raises `MalformedRecord`, `RegistryAway` or
        `RegistryRefused`."""
        header = headers.get(HEADER)
        naming = data if header is None else header
        id, at = _schema_id(naming)
        if id not in self._readers:
            try:
                self._readers[id] = self._reader(id)
            except MalformedRecord as error:
                raise MalformedRecord(f"schema {id} cannot be used: {error}") from None
        kind, read = self._readers[id]
        try:
            indexes, at = message_indexes(naming, at) if kind == "PROTOBUF" else ([], at)
            value = read(data[at:] if header is None else data, indexes)
        except MalformedRecord as error:
            raise MalformedRecord(f"not {KINDS[kind]} of its schema {id}: {error}") from None
        except Exception as error:
            # Schemas are untrusted: for an invalid one the libraries raise errors of any class.
            raise MalformedRecord(
                f"not {KINDS[kind]} of its schema {id}: {type(error).__name__}: {str(error)[:300]}"
            ) from None
        if not isinstance(value, dict):
            raise MalformedRecord(f"schema {id}: a record is needed, found {type(value).__name__}")
        return value

    def _reader(self, id: int | str) -> tuple[str, Read]:
        schema = self._fetch(id)
        kind = schema.schema_type or "AVRO"
        if kind not in KINDS:
            raise UnreadableValue(f"its type is {str(kind)[:40]!r}, supported are {', '.join(KINDS)}")
        if kind == "AVRO":
            return kind, self._avro(schema)
        return kind, self._protobuf(id) if kind == "PROTOBUF" else _read_json

    def _fetch(self, id: int | str, fmt: str | None = None) -> Any:
        if isinstance(id, int):
            return self._client.get_schema(id, fmt=fmt)
        return self._client.get_schema_by_guid(id, fmt)

    def _avro(self, schema: Any) -> Read:
        from fastavro import parse_schema

        names: dict[str, Any] = {}
        try:
            for each in referenced_schemas(self._client, schema).values():
                parse_schema(_avro_schema(each.schema_str), named_schemas=names)
            parsed = parse_schema(_avro_schema(schema.schema_str), named_schemas=names)
        except ForebayError:
            raise
        except Exception as error:
            raise UnreadableValue(f"{type(error).__name__}: {str(error)[:300]}") from None
        return lambda data, _: read_value(parsed, names, data)

    def _protobuf(self, id: int | str) -> Read:
        schema = self._fetch(id, SERIALIZED)
        imported = referenced_schemas(self._client, schema, SERIALIZED)
        try:
            file = file_descriptor(schema.schema_str, f"schema-{id}.proto")
            files = {name: file_descriptor(each.schema_str, name) for name, each in imported.items()}
        except NotADescriptor:
            raise RegistryRefused(
                f"the schema registry at {self._url} does not serve Protobuf schemas as descriptors "
                "(format=serialized), which is needed to read their values"
            ) from None
        made = ProtobufSchema(file, files)
        return lambda data, indexes: made.read(indexes, data)


def _schema_id(naming: bytes) -> tuple[int | str, int]:
    size = {0: 4, 1: 16}.get(naming[0], 0) if naming else 0
    if not size or len(naming) <= size:
        raise MalformedRecord(
            "the value names no schema: expected a byte 0 and an id of 4 bytes in front of it, or a byte 1 "
            f"and a GUID of 16, found {naming[:17].hex() or 'nothing'}"
        )
    named = naming[1 : 1 + size]
    return int.from_bytes(named, "big") if size == 4 else str(uuid.UUID(bytes=named)), 1 + size


def _read_json(data: bytes, _: list[int]) -> JSON:
    return dict(json_object(data))


def _avro_schema(text: str) -> Any:
    return orjson.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
