"""Protobuf values as JSON: each type, values without a representation, and any bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka.schema_registry.confluent.type.decimal_pb2 import Decimal
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BoolValue, BytesValue, DoubleValue, Int64Value, StringValue
from google.type.money_pb2 import Money
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.kafka.json_scalars import UnreadableValue
from forebay.connectors.kafka.protobuf import NotADescriptor, ProtobufSchema, file_descriptor, message_indexes

TYPES = {name.removeprefix("TYPE_").lower(): number for name, number in FieldDescriptorProto.Type.items()}
REPEATED, OPTIONAL = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.LABEL_OPTIONAL
KINDS = {
    "double": 0.5,
    "float": 0.25,
    "int32": -(2**31),
    "int64": -(2**63),
    "uint32": 2**32 - 1,
    "uint64": 2**64 - 1,
    "sint32": -1,
    "sint64": -(2**63),
    "fixed32": 1,
    "fixed64": 2**64 - 1,
    "sfixed32": -1,
    "sfixed64": -1,
    "bool": True,
    "string": "é",
    "bytes": b"\xff\0",
}
KNOWN = {
    "google.protobuf.Timestamp": "google/protobuf/timestamp.proto",
    "google.protobuf.Duration": "google/protobuf/duration.proto",
    "google.protobuf.Struct": "google/protobuf/struct.proto",
    "google.protobuf.Int64Value": "google/protobuf/wrappers.proto",
    "confluent.type.Decimal": "confluent/type/decimal.proto",
    "google.type.Money": "google/type/money.proto",
}
WRAPPED = ("Bool", "Bytes", "Double", "Int64", "String")


def field(name: str, number: int, kind: str, label: int = OPTIONAL, **more: Any) -> dict[str, Any]:
    if kind.startswith("."):
        more["type_name"] = kind
        kind = more.pop("of", "message")
    return {"name": name, "number": number, "type": TYPES[kind], "label": label, **more}


def file(messages: list[dict[str, Any]], **more: Any) -> FileDescriptorProto:
    return FileDescriptorProto(name="f.proto", syntax="proto3", message_type=messages, **more)


def map_entry(name: str, key: str) -> dict[str, Any]:
    fields = [field("key", 1, key), field("value", 2, "int64")]
    return {"name": name, "field": fields, "options": {"map_entry": True}}


FILE = file(
    [
        {"name": "One", "field": [field(kind, n, kind) for n, kind in enumerate(KINDS, 1)]},
        {"name": "Many", "field": [field(kind, n, kind, REPEATED) for n, kind in enumerate(KINDS, 1)]},
        {
            "name": "Rest",
            "field": [
                field("enum", 1, ".Colour", of="enum"),
                field("inner", 2, ".One"),
                field("next", 3, ".Rest", REPEATED),
                field("text_map", 4, ".Rest.TextMapEntry", REPEATED),
                field("bool_map", 5, ".Rest.BoolMapEntry", REPEATED),
                field("number_map", 6, ".Rest.NumberMapEntry", REPEATED),
                field("maybe", 7, "string", proto3_optional=True, oneof_index=0),
            ],
            "nested_type": [
                map_entry("TextMapEntry", "string"),
                map_entry("BoolMapEntry", "bool"),
                map_entry("NumberMapEntry", "int32"),
            ],
            "oneof_decl": [{"name": "_maybe"}],
        },
        {
            "name": "Known",
            "field": [
                *(field(name.rpartition(".")[2].lower(), n, f".{name}") for n, name in enumerate(KNOWN, 1)),
                *(
                    field(f"w_{kind.lower()}", n, f".google.protobuf.{kind}Value")
                    for n, kind in enumerate(WRAPPED, 10)
                ),
            ],
        },
    ],
    enum_type=[{"name": "Colour", "value": [{"name": "NONE", "number": 0}, {"name": "RED", "number": 5}]}],
    dependency=sorted({*KNOWN.values()}),
)
SCHEMA = ProtobufSchema(FILE, {})
PLACES = {message.name: [n] for n, message in enumerate(FILE.message_type)}
REST_DEFAULTS = {"enum": "NONE", "next": [], "text_map": {}, "bool_map": {}, "number_map": {}}


def read(name: str, data: bytes) -> Mapping[str, Any]:
    return SCHEMA.read(PLACES[name], data)


def message(name: str, **fields: Any) -> bytes:
    """Bytes written by protobuf itself."""
    descriptor = SCHEMA._messages[name]
    return GetMessageClass(descriptor)(**fields).SerializeToString()


def known(name: str, value: Any) -> bytes:
    """A message `Known` of its own class, whose field `name` is `value`."""
    number = SCHEMA._messages["Known"].fields_by_name[name].number
    raw = value.SerializeToString()
    return bytes([number << 3 | 2, len(raw)]) + raw


def shown(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("kind", KINDS)
def test_each_scalar_once_and_in_a_list(kind: str) -> None:
    value = KINDS[kind]
    assert read("One", message("One", **{kind: value}))[kind] == shown(value)
    assert read("Many", message("Many", **{kind: [value, value]}))[kind] == [shown(value)] * 2


def test_fields_that_are_not_on_the_wire_have_their_defaults() -> None:
    empty = {"bool": False, "string": "", "bytes": ""}
    assert read("One", b"") == {kind: empty.get(kind, 0) for kind in KINDS}
    assert read("Many", b"") == {kind: [] for kind in KINDS}
    # One whose absence differs from its default is left out.
    assert read("Rest", b"") == REST_DEFAULTS
    assert read("Rest", message("Rest", maybe="")) == {**REST_DEFAULTS, "maybe": ""}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"enum": 5}, {"enum": "RED"}),
        ({"enum": 77}, {"enum": 77}),
        ({"text_map": {"a": 1}}, {"text_map": {"a": 1}}),
        ({"bool_map": {True: 1}}, {"bool_map": {"true": 1}}),
        ({"number_map": {-3: 2**60}}, {"number_map": {"-3": 2**60}}),
        ({"next": [{"enum": 5}]}, {"next": [{**REST_DEFAULTS, "enum": "RED"}]}),
    ],
)
def test_messages_maps_and_enums(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read("Rest", message("Rest", **fields)) == {**REST_DEFAULTS, **expected}


STRUCT = Struct()
STRUCT.update({"a": [1.5, None, {"b": True}], "c": "x"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("timestamp", Timestamp(seconds=1769860800, nanos=5), "2026-01-31T12:00:00.000000005+00:00"),
        ("timestamp", Timestamp(seconds=253402300800), "+10000-01-01T00:00:00+00:00"),
        ("duration", Duration(seconds=90, nanos=500_000_000), "PT90.500000000S"),
        ("duration", Duration(seconds=0, nanos=-1), "-PT0.000000001S"),
        ("duration", Duration(seconds=-5), "-PT5S"),
        ("struct", STRUCT, {"a": [1.5, None, {"b": True}], "c": "x"}),
        ("int64value", Int64Value(value=2**63 - 1), 2**63 - 1),
        ("w_bool", BoolValue(), False),
        ("w_bytes", BytesValue(value=b"ab"), "YWI="),
        ("w_double", DoubleValue(value=float("nan")), "NaN"),
        ("w_string", StringValue(value="x"), "x"),
        ("decimal", Decimal(value=b"\xfb\x1e", precision=6, scale=2), "-12.50"),
        ("money", Money(currency_code="EUR", units=5), {"currency_code": "EUR", "units": 5, "nanos": 0}),
    ],
)
def test_well_known_messages(name: str, value: Any, expected: Any) -> None:
    assert read("Known", known(name, value)) == {name: expected}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("timestamp", Timestamp(nanos=-1), "field 'timestamp': a timestamp's nanos"),
        ("duration", Duration(seconds=1, nanos=-1), "field 'duration': not a duration"),
        ("decimal", Decimal(value=b"1", scale=10**6), "field 'decimal': a decimal has a scale of 1000000"),
    ],
)
def test_values_without_a_representation_are_named(name: str, value: Any, words: str) -> None:
    with pytest.raises(UnreadableValue, match=words):
        read("Known", known(name, value))


def test_too_deep_message_is_rejected() -> None:
    raw = b""
    for _ in range(200):
        raw = message("Rest") + b"\x1a" + varint(len(raw)) + raw
    with pytest.raises(UnreadableValue, match="not a message Rest"):
        read("Rest", raw)


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def test_schema_that_makes_too_many_values_is_rejected() -> None:
    wide = {"name": "Wide", "field": [field(f"f{n}", n, "int64") for n in range(1, 1000)]}
    top = {"name": "Top", "field": [field("wide", 1, ".Wide", REPEATED)]}
    schema = ProtobufSchema(file([top, wide]), {})
    assert len(schema.read([0], b"\x0a\0" * 10)["wide"]) == 10
    with pytest.raises(
        UnreadableValue, match=r"field 'wide.*': its schema expands the record to more values"
    ):
        schema.read([0], b"\x0a\0" * 1000)


@given(st.binary(max_size=60), st.sampled_from(list(PLACES)))
def test_other_bytes_are_rejected_or_readable(raw: bytes, name: str) -> None:
    with suppress(UnreadableValue):
        read(name, raw)


@given(st.lists(st.integers(0, 10**6), max_size=100), st.binary(max_size=4))
def test_indexes_are_read_as_written(indexes: list[int], before: bytes) -> None:
    raw = before + b"".join(varint(2 * number) for number in (len(indexes), *indexes))
    assert message_indexes(raw, len(before)) == (indexes or [0], len(raw))


@given(st.binary(max_size=20))
def test_other_bytes_are_indexes_or_rejected(raw: bytes) -> None:
    with suppress(UnreadableValue):
        message_indexes(raw, 0)


@pytest.mark.parametrize("text", ['syntax = "proto3";', "é", "YWI"])
def test_a_text_that_is_not_base64_is_distinguished(text: str) -> None:
    with pytest.raises(NotADescriptor):
        file_descriptor(text, "f.proto")


def imports(name: str, *dependencies: str) -> FileDescriptorProto:
    return FileDescriptorProto(name=name, syntax="proto3", dependency=list(dependencies))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([imports("a", "b")], "it imports 'b', which it does not list"),
        ([imports("a", "b"), imports("b", "a")], "its imports are circular"),
        ([imports(f"f{n}", f"f{n + 1}") for n in range(200)], "more than 50 files deep"),
        ([imports("a", "google/protobuf/no_such_file.proto")], "it imports 'google/protobuf/no_such"),
        ([imports("a", "google/../../os.proto")], "it imports 'google/../../os.proto'"),
        ([file([{"name": "A", "field": [field("x", 1, ".Gone")]}])], "'f.proto' cannot be used"),
    ],
)
def test_schema_files_that_do_not_fit(files: list[FileDescriptorProto], words: str) -> None:
    with pytest.raises(UnreadableValue, match=words):
        ProtobufSchema(files[0], {each.name: each for each in files})


def test_files_that_share_an_import() -> None:
    files = [imports("a", "b", "c"), imports("b"), imports("c", "b", "google/protobuf/any.proto")]
    ProtobufSchema(files[0], {each.name: each for each in files[1:]})
