"""Protobuf values as JSON values, with a registry's descriptors; needs no compiler."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Mapping
from typing import Any

from forebay.connectors.kafka.json_scalars import (
    UnreadableValue,
    bytes_value,
    decimal_value,
    float_value,
    moment_value,
)
from forebay.records import JSON

MAX_EMPTY = 100_000
VALUES_PER_BYTE = 4
"""Unsent fields have defaults, so a message of two bytes can expand without limit."""
MAX_INDEXES = 100
MAX_IMPORT_DEPTH = 50
KNOWN_IMPORT = re.compile(r"(google/(?:protobuf|type)|confluent(?:/types?)?)/([a-z_]+)\.proto")
PACKAGES = {"confluent": "confluent_kafka.schema_registry.confluent"}


class NotADescriptor(ValueError): ...


def file_descriptor(text: str, name: str) -> Any:
    """`text`: base64. Raises `NotADescriptor` or `UnreadableValue`."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NotADescriptor from None
    try:
        found = FileDescriptorProto.FromString(raw)
    except DecodeError:
        raise UnreadableValue("the registry's serialized schema is not a descriptor") from None
    found.name = name
    return found


class ProtobufSchema:
    def __init__(self, file: Any, imported: Mapping[str, Any]) -> None:
        """Raises `UnreadableValue` if an imported file is missing or two conflict."""
        from google.protobuf.descriptor_pool import DescriptorPool

        pool: Any = DescriptorPool()
        for each in _in_order(file, imported):
            try:
                pool.AddSerializedFile(each.SerializeToString())
            except Exception as error:
                raise UnreadableValue(f"{each.name[:200]!r} cannot be used: {str(error)[:300]}") from None
        self._messages = pool.FindFileByName(file.name).message_types_by_name

    def read(self, indexes: list[int], data: bytes) -> Mapping[str, JSON]:
        """`indexes`: path of the message's type in the file. Raises `UnreadableValue`."""
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        descriptor = self._descriptor(indexes)
        try:
            message = GetMessageClass(descriptor).FromString(data)
        except DecodeError as error:
            raise UnreadableValue(f"not a message {descriptor.full_name}: {str(error)[:200]}") from None
        return _Converter(len(data)).fields(message)

    def _descriptor(self, indexes: list[int]) -> Any:
        inner, found = list(self._messages.values()), None
        for index in indexes:
            if not 0 <= index < len(inner):
                raise UnreadableValue(
                    f"its message indexes are {indexes[:10]}, and the schema has no such message"
                )
            found = inner[index]
            inner = list(found.nested_types)
        return found


def message_indexes(data: bytes, at: int) -> tuple[list[int], int]:
    """Raises `UnreadableValue`."""
    count, at = _number(data, at)
    if not 0 <= count <= MAX_INDEXES:
        raise UnreadableValue(f"it has {count} message indexes, the limit is {MAX_INDEXES}")
    indexes = []
    for _ in range(count):
        index, at = _number(data, at)
        indexes.append(index)
    return indexes or [0], at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at + shift // 7 >= len(data):
            break
        byte = data[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at + shift // 7 + 1
    raise UnreadableValue("its message indexes have no end")


def _in_order(file: Any, imported: Mapping[str, Any]) -> list[Any]:
    found: dict[str, Any] = {}

    def visit(each: Any, importing: tuple[str, ...]) -> None:
        if each.name in importing or len(importing) > MAX_IMPORT_DEPTH:
            raise UnreadableValue(f"its imports are circular or more than {MAX_IMPORT_DEPTH} files deep")
        for name in each.dependency:
            if name not in found:
                visit(_file(name, imported), (*importing, each.name))
        found[each.name] = each

    visit(file, ())
    return list(found.values())


def _file(name: str, imported: Mapping[str, Any]) -> Any:
    known = KNOWN_IMPORT.fullmatch(name)
    if known is not None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        folder, file = known.groups()
        first, _, rest = folder.partition("/")
        package = PACKAGES.get(first, first) + (f".{rest}" if rest else "")
        try:
            descriptor = importlib.import_module(f"{package}.{file}_pb2").DESCRIPTOR
        except ImportError:
            pass
        else:
            return FileDescriptorProto.FromString(descriptor.serialized_pb)
    if name not in imported:
        raise UnreadableValue(f"it imports {name[:200]!r}, which it does not list among its references")
    return imported[name]


WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class _Converter:
    def __init__(self, size: int) -> None:
        self._left = MAX_EMPTY + VALUES_PER_BYTE * size

    def fields(self, message: Any) -> dict[str, JSON]:
        found: dict[str, JSON] = {}
        for field in message.DESCRIPTOR.fields:
            if field.has_presence and not message.HasField(field.name):
                continue
            try:
                found[field.name] = self._field(field, getattr(message, field.name))
            except UnreadableValue as error:
                error.at.append(field.name)
                raise
        return found

    def _field(self, field: Any, value: Any) -> JSON:
        if field.label != field.LABEL_REPEATED:
            return self._one(field, value)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            return {_key(key): self._one(inner, value[key]) for key in value}
        return [self._one(field, each) for each in value]

    def _one(self, field: Any, value: Any) -> JSON:
        self._left -= 1
        if self._left < 0:
            raise UnreadableValue("its schema expands the record to more values than are allowed")
        if field.message_type is not None:
            return self._message(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        if isinstance(value, float):
            return float_value(value)
        return bytes_value(value) if isinstance(value, bytes) else value

    def _message(self, message: Any) -> JSON:
        name = message.DESCRIPTOR.full_name
        if name in WRAPPERS:
            return self._one(message.DESCRIPTOR.fields_by_name["value"], message.value)
        match name:
            case "google.protobuf.Timestamp":
                return moment_value(message.seconds * 10**9 + _nanos(message.nanos), 10**9)
            case "google.protobuf.Duration":
                return _duration(message.seconds, message.nanos)
            case "google.protobuf.Struct":
                return {key: self._value(message.fields[key]) for key in message.fields}
            case "google.protobuf.ListValue":
                return [self._value(each) for each in message.values]
            case "google.protobuf.Value":
                return self._value(message)
            case "confluent.type.Decimal":
                return decimal_value(message.value, message.scale)
        return self.fields(message)

    def _value(self, value: Any) -> JSON:
        kind = value.WhichOneof("kind")
        if kind is None or kind == "null_value":
            return None
        return self._one(value.DESCRIPTOR.fields_by_name[kind], getattr(value, kind))


def _key(key: str | int | bool) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _nanos(nanos: int) -> int:
    if not 0 <= nanos < 10**9:
        raise UnreadableValue(f"a timestamp's nanos are between 0 and 999999999, found {nanos}")
    return nanos


def _duration(seconds: int, nanos: int) -> str:
    if abs(nanos) >= 10**9 or seconds * nanos < 0:
        raise UnreadableValue(f"not a duration: {seconds} seconds and {nanos} nanos")
    sign = "-" if seconds < 0 or nanos < 0 else ""
    fraction = f".{abs(nanos):09}" if nanos else ""
    return f"{sign}PT{abs(seconds)}{fraction}S"
