"""Values of a schema registry, of Avro, JSON Schema and Protobuf: read to the last digit, or refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from tests.corpus.case import Refused, at, cases, check
from tests.corpus.sources import PLACE
from tests.corpus.way import check_way
from tests.harness.schema_registry import ScriptedRegistry

from forebay.connectors.formats import Format
from forebay.connectors.kafka.registry import SchemaRegistry
from forebay.connectors.kafka.registry_values import RegistryValues
from forebay.connectors.kafka.source import read_record
from forebay.json_numbers import ExactFloat
from forebay.records import DeadLetter

pytestmark = pytest.mark.heavy

JSON_ID, PROTOBUF_ID = 900, 901


@dataclass(frozen=True)
class Avro:
    """The type of a field `v`, its bytes, and its value."""

    name: str
    type: Any
    data: bytes
    expected: Any


def zigzag(number: int) -> bytes:
    value, out = (number << 1) ^ (number >> 63), bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def number(name: str, type: Any, value: int, expected: Any) -> Avro:
    return Avro(name, type, zigzag(value), expected)


MS, US, NS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
DAY, LEFT = logical("int", "date"), Refused("bytes are needed")
LIST, NODE = {"type": "array", "items": "long"}, {"type": "map", "values": "long"}
AVRO = (
    number("long 2**63 - 1", "long", 2**63 - 1, 2**63 - 1),
    number("long -2**63", "long", -(2**63), -(2**63)),
    number("null of a union", ["null", "long"], 0, None),
    Avro("long of a union", ["null", "long"], zigzag(1) + zigzag(2**53 + 1), 2**53 + 1),
    number("third of two", ["null", "long"], 2, Refused("field 'v': the union has 2 choices, found 2")),
    number("minus first", ["null", "long"], -1, Refused("the union has 2 choices, found -1")),
    number("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, 1, "B"),
    number("no enum", {"type": "enum", "name": "E", "symbols": ["A"]}, 1, Refused("the enum has 1 choices")),
    Avro("long without an end", "long", b"\xff" * 11, Refused("has no end within 64 bits")),
    Avro("long of 65 bits", "long", b"\xff" * 9 + b"\x03", Refused("has no end within 64 bits")),
    Avro("nothing", "long", b"", Refused("has no end within 64 bits")),
    Avro("bytes left over", "long", b"\x02\x02", Refused("1 bytes are left over")),
    Avro("boolean of 2", "boolean", b"\x02", True),
    Avro("NaN", "double", struct.pack("<d", float("nan")), "NaN"),
    Avro("minus infinity", "float", struct.pack("<f", float("-inf")), "-Infinity"),
    Avro("minus 0", "double", struct.pack("<d", -0.0), -0.0),
    Avro("0.1 of a float", "float", struct.pack("<f", 0.1), 0.10000000149011612),
    Avro("half a double", "double", b"\0" * 4, LEFT),
    Avro("text", "string", sized("é\u2028😀\0".encode()), "é\u2028😀\0"),
    Avro("text of Latin-1", "string", sized(b"\xe9"), Refused("field 'v': a text is not UTF-8")),
    Avro("overlong text", "string", sized(b"\xc0\x80"), Refused("not UTF-8")),
    Avro("text of -1 bytes", "string", zigzag(-1), Refused("-1 bytes are needed")),
    Avro("text of 2**60 bytes", "string", zigzag(2**60), LEFT),
    Avro("bytes", "bytes", sized(b"\0\xff"), "AP8="),
    Avro("fixed", {"type": "fixed", "name": "F", "size": 2}, b"\0\xff", "AP8="),
    Avro("UUID", logical("string", "uuid"), sized(b"not one"), "not one"),
    number("date", DAY, 20_513, "2026-03-01"),
    number("date before 1970", DAY, -1, "1969-12-31"),
    number("date of infinity", DAY, 2**31 - 1, "+5881580-07-11"),
    number("date before year 0", DAY, -800_000, "-0221-09-04"),
    number("time of day", logical("int", "time-millis"), 86_399_999, "23:59:59.999000"),
    number("end of day", logical("int", "time-millis"), 86_400_000, "24:00:00"),
    number("time below 0", logical("int", "time-millis"), -1, Refused("a time of day is between")),
    number("milliseconds", MS, 1_772_359_200_001, "2026-03-01T10:00:00.001000+00:00"),
    number("microseconds below 0", US, -1, "1969-12-31T23:59:59.999999+00:00"),
    number("nanoseconds", NS, 1_772_359_200_000_000_001, "2026-03-01T10:00:00.000000001+00:00"),
    number("infinity of Debezium", US, 2**63 - 1, "+294247-01-10T04:00:54.775807+00:00"),
    number("minus infinity of Debezium", MS, -(2**63), "-292275055-05-16T16:47:04.192000+00:00"),
    number("local", logical("long", "local-timestamp-micros"), 0, "1970-01-01T00:00:00"),
    Avro("decimal", logical("bytes", "decimal", precision=4, scale=2), sized(b"\xff\x85"), "-1.23"),
    Avro("decimal of no bytes", logical("bytes", "decimal", precision=4, scale=2), sized(b""), "0.00"),
    Avro(
        "decimal of 38 digits",
        logical("bytes", "decimal", precision=38),
        sized(b"\x4b" + b"\0" * 15),
        str(0x4B << 120),
    ),
    Avro(
        "huge decimal",
        logical("bytes", "decimal", precision=9),
        sized(b"\x01" * 1025),
        Refused("the limit is 1024"),
    ),
    Avro("list", LIST, zigzag(2) + zigzag(1) + zigzag(-1) + b"\0", [1, -1]),
    Avro("list with its size", LIST, zigzag(-1) + zigzag(1) + zigzag(5) + b"\0", [5]),
    Avro("empty list", LIST, b"\0", []),
    Avro(
        "a billion of nulls",
        {"type": "array", "items": "null"},
        zigzag(10**9) + b"\0",
        Refused("more items than bytes"),
    ),
    Avro("two of one name", NODE, zigzag(2) + (sized(b"a") + b"\x02") * 2 + b"\0", {"a": 1}),
    Avro("empty name", NODE, zigzag(1) + sized(b"") + b"\x02\0", {"": 1}),
    Avro("open list", LIST, zigzag(2) + zigzag(1), Refused("has no end within 64 bits")),
    Avro("recursion", ["null", "R"], b"\x02" * 300 + b"\0", Refused("nested deeper than 200 levels")),
)
SCHEMAS = {
    id: {"type": "record", "name": "R", "fields": [{"name": "v", "type": case.type}]}
    for id, case in enumerate(AVRO, 1)
}


@dataclass(frozen=True)
class Framed:
    """A whole value, and its fields."""

    name: str
    value: bytes
    expected: Any


def framed(id: int, data: bytes) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + data


def message(name: str, data: bytes, expected: Any, indexes: bytes = b"\0") -> Framed:
    return Framed(f"Protobuf: {name}", framed(PROTOBUF_ID, indexes + data), expected)


def json_value(name: str, data: bytes, expected: Any) -> Framed:
    return Framed(f"JSON: {name}", framed(JSON_ID, data), expected)


FIELD = FieldDescriptorProto
FILE = FileDescriptorProto(
    name="default",
    syntax="proto3",
    message_type=[
        {
            "name": "M",
            "field": [
                {"name": "n", "number": 1, "type": FIELD.TYPE_UINT64, "label": FIELD.LABEL_OPTIONAL},
                {"name": "t", "number": 2, "type": FIELD.TYPE_STRING, "label": FIELD.LABEL_OPTIONAL},
                {"name": "d", "number": 3, "type": FIELD.TYPE_DOUBLE, "label": FIELD.LABEL_OPTIONAL},
            ],
        }
    ],
)
EMPTY = {"n": 0, "t": "", "d": 0.0}
FRAMED = (
    json_value("object", b'{"a": 1}', {"a": 1}),
    json_value("long number", b'{"a": 18446744073709551616}', {"a": 2**64}),
    json_value("1e400", b'{"a": 1e400}', {"a": ExactFloat("1e400")}),
    json_value("number without an end", b'{"a": ' + b"9" * 2000 + b"}", Refused("field 'a' is 9999")),
    json_value("NaN", b'{"a": NaN}', Refused("not JSON of its schema 900: not JSON")),
    json_value("BOM", b'\xef\xbb\xbf{"a": 1}', Refused("not JSON of its schema")),
    json_value("Latin-1", b'{"a": "\xe9"}', Refused("not UTF-8: byte 8 is 0xe9")),
    json_value("list", b"[]", Refused("found an array")),
    json_value("nothing", b"", Refused("not JSON of its schema 900: not JSON")),
    json_value("too deep", b'{"a":' + b"[" * 201 + b"]" * 201 + b"}", Refused("nested deeper than 200")),
    json_value(
        "too deep with a long number",
        b'{"a":' + b"[" * 990 + b"9" * 20 + b"]" * 990 + b"}",
        Refused("200 levels"),
    ),
    message("empty", b"", EMPTY),
    message("2**64 - 1", b"\x08" + b"\xff" * 9 + b"\x01", {**EMPTY, "n": 2**64 - 1}),
    message("last of two", b"\x08\x01\x08\x02", {**EMPTY, "n": 2}),
    message("text", b"\x12\x05\xe2\x80\xa8\0x", {**EMPTY, "t": "\u2028\0x"}),
    message("text of Latin-1", b"\x12\x01\xe9", Refused("not a message M")),
    message("NaN", b"\x19" + struct.pack("<d", float("nan")), {**EMPTY, "d": "NaN"}),
    message("minus 0", b"\x19" + struct.pack("<d", -0.0), {**EMPTY, "d": -0.0}),
    message("unknown field", b"\x98\x06\x01", EMPTY),
    message("cut", b"\x12\x05ab", Refused("not a message M")),
    message("field 0", b"\x00\x01", Refused("not a message M")),
    message("group without an end", b"\x0b", Refused("not a message M")),
    message("second message", b"", Refused("the schema has no such message"), b"\x02\x02"),
    message("minus first message", b"", Refused("the schema has no such message"), b"\x02\x01"),
    message("indexes without an end", b"", Refused("have no end"), b"\xff" * 6),
    message("minus one indexes", b"", Refused("-1 message indexes, the limit is 100"), b"\x01"),
    message("a thousand indexes", b"", Refused("1000 message indexes, the limit is 100"), zigzag(1000)),
    Framed("no value", b"", Refused("the value names no schema: expected")),
    Framed("JSON without a schema", b'{"a": 1}', Refused("found 7b2261223a20317d")),
    Framed("half an id", b"\0\0\0", Refused("found 000000")),
    Framed("a GUID cut", b"\x01" + b"\0" * 10, Refused("the value names no schema")),
    Framed("above the limit", framed(1, b"x" * (1 << 20)), Refused("the limit is 1048576")),
)


@pytest.fixture(scope="module")
def values() -> Iterator[RegistryValues]:
    text = 'syntax = "proto3"; …'
    with ScriptedRegistry({**SCHEMAS, JSON_ID: '{"type": "object"}', PROTOBUF_ID: text}) as registry:
        registry.types |= {JSON_ID: "JSON", PROTOBUF_ID: "PROTOBUF"}
        registry.descriptors[PROTOBUF_ID] = FILE.SerializeToString()
        yield RegistryValues(SchemaRegistry(registry.url))


@cases(AVRO)
def test_avro_value_is_read_or_rejected(case: Avro, values: RegistryValues) -> None:
    raw = framed(1 + AVRO.index(case), case.data)
    expected = case.expected if isinstance(case.expected, Refused) else {"v": case.expected}
    record = read_record(Format(), b"k", raw, {}, PLACE, parse=values.fields)
    check(record, expected, case.name)
    assert record.raw == raw
    check_way(record, Format(), case.name, parse=values.fields)
    if not isinstance(record, DeadLetter):
        header = {"__value_schema_id": framed(1 + AVRO.index(case), b"")}
        check(read_record(Format(), b"k", case.data, header, PLACE, parse=values.fields), expected, "header")


@cases(FRAMED)
def test_value_with_a_schema_is_read_or_rejected(case: Framed, values: RegistryValues) -> None:
    record = read_record(Format(), b"k", case.value, {}, PLACE, parse=values.fields)
    check(record, case.expected, case.name)
    assert record.raw == case.value
    check_way(record, Format(), case.name, parse=values.fields)


def test_a_timestamp_of_avro_is_the_time_of_the_event(values: RegistryValues) -> None:
    times = {
        "milliseconds": 1_772_359_200_001,
        "nanoseconds": 1_772_359_200_000,
        "date before 1970": -86_400_000,
    }
    names = [case.name for case in AVRO]
    for name, time_ms in times.items():
        raw = framed(1 + names.index(name), AVRO[names.index(name)].data)
        record = read_record(at("iso8601", path="v"), b"k", raw, {}, PLACE, parse=values.fields)
        assert record.time_ms == time_ms, record
    raw = framed(1 + names.index("infinity of Debezium"), zigzag(2**63 - 1))
    check(
        read_record(at("iso8601", path="v"), b"k", raw, {}, PLACE, parse=values.fields),
        Refused("is not iso8601"),
    )
