"""The reader accepts exactly what Avro's own accepts, represents every type, and survives any bytes."""

from __future__ import annotations

import base64
import io
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.kafka.avro import read_value
from forebay.connectors.kafka.json_scalars import UnreadableValue, date_value, float_value, moment_value

NAMES: dict[str, Any] = {}
SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "ns.Node",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "n", "type": ["null", "long", "double"]},
            {"name": "flag", "type": "boolean"},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "float"}}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
            {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 3}},
            {"name": "next", "type": ["null", "Node"]},
        ],
    },
    named_schemas=NAMES,
)
LARGE_DECIMAL = {"type": "fixed", "name": "D", "size": 2000, "logicalType": "decimal", "precision": 4000}
LEAF = st.fixed_dictionaries(
    {
        "text": st.text(max_size=20),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
        "flag": st.booleans(),
        "tags": st.dictionaries(
            st.text(max_size=4), st.lists(st.floats(width=32, allow_nan=False), max_size=4), max_size=4
        ),
        "kind": st.sampled_from("ab"),
        "mark": st.binary(min_size=3, max_size=3),
        "next": st.none(),
    }
)
NODES = st.recursive(LEAF, lambda inner: st.builds(lambda a, b: {**a, "next": b}, LEAF, inner), max_leaves=8)


def bytes_of(value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, SCHEMA, value)
    return out.getvalue()


@given(NODES)
def test_every_written_value_is_valid(value: Any) -> None:
    read_value(SCHEMA, NAMES, bytes_of(value))


@given(NODES, st.data())
def test_part_of_a_value_is_invalid(value: Any, data: st.DataObject) -> None:
    raw = bytes_of(value)
    with pytest.raises(UnreadableValue):
        read_value(SCHEMA, NAMES, raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(UnreadableValue, match="left over"):
        read_value(SCHEMA, NAMES, raw + b"\0")


@given(st.binary(max_size=60))
def test_other_bytes_are_rejected_or_readable(raw: bytes) -> None:
    try:
        read_value(SCHEMA, NAMES, raw)
    except UnreadableValue:
        return
    with suppress(UnicodeDecodeError):
        schemaless_reader(io.BytesIO(raw), SCHEMA, None)


@pytest.mark.parametrize(
    ("schema", "raw", "words"),
    [
        ("string", b"\x01abc", "-1 bytes are needed"),
        ("string", b"\x08abc", "4 bytes are needed, 3 are left"),
        ("long", b"\xff" * 9 + b"\x03", "64 bits"),
        ("long", b"\xff" * 2_000_000, "64 bits"),
        (["null", "int"], b"\x01\x02", "the union has 2 choices, found -1"),
        (["null", "int"], b"\x04", "the union has 2 choices, found 2"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x01", "the enum has 1 choices, found -1"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x02", "the enum has 1 choices, found 1"),
        (LARGE_DECIMAL, b"1" * 2000, "a decimal has 2000 bytes"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "R"}]}, b"", "nested deeper"),
        ({"type": "array", "items": "null"}, b"\x04\0", None),
        ({"type": "array", "items": "null"}, b"\x04\x04\x04\x04\0", "more items than bytes"),
        ({"type": "array", "items": "null"}, b"\x7f\0\0", "more items than bytes"),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\0", None),
        ({"type": "array", "items": "string"}, b"\x01\x04\x02a\0", None),
    ],
)
def test_lenient_values_of_readers(schema: Any, raw: bytes, words: str | None) -> None:
    names: dict[str, Any] = {}
    parsed = parse_schema(schema, named_schemas=names)
    if words is None:
        read_value(parsed, names, raw)
    else:
        with pytest.raises(UnreadableValue, match=words):
            read_value(parsed, names, raw)


def test_schema_that_makes_values_out_of_nothing_is_rejected() -> None:
    schema: Any = {"type": "record", "name": "N0", "fields": [{"name": "x", "type": "null"}]}
    for number in range(1, 30):
        before = {"name": "b", "type": f"N{number - 1}"}
        schema = {"type": "record", "name": f"N{number}", "fields": [{"name": "a", "type": schema}, before]}
    names: dict[str, Any] = {}
    parsed = parse_schema(schema, named_schemas=names)
    with pytest.raises(UnreadableValue, match="more values"):
        read_value(parsed, names, b"")


def test_unknown_type_is_rejected() -> None:
    with pytest.raises(UnreadableValue, match="unknown type 'Nobody'"):
        read_value("Nobody", {}, b"")


def logical(kind: str, what: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": what, **more}


def plain(kind: Any, value: Any) -> bytes:
    out = io.BytesIO()
    schemaless_writer(out, kind, value)
    return out.getvalue()


FIXED_12 = {"type": "fixed", "name": "F", "size": 12}
FIXED_16 = {"type": "fixed", "name": "F", "size": 16}
MAX, MIN = 2**63 - 1, -(2**63)
EVERY_TYPE = [
    ("float", "float", float("inf"), "Infinity"),
    (logical("int", "date"), "int", 20484, "2026-01-31"),
    (logical("int", "date"), "int", 2932896, "9999-12-31"),
    (logical("int", "date"), "int", 2932897, "+10000-01-01"),
    (logical("int", "date"), "int", 2**31 - 1, "+5881580-07-11"),
    (logical("int", "date"), "int", -719162, "0001-01-01"),
    (logical("int", "date"), "int", -719163, "0000-12-31"),
    (logical("int", "date"), "int", -719529, "-0001-12-31"),
    (logical("int", "date"), "int", -(2**31), "-5877641-06-23"),
    (logical("int", "time-millis"), "int", 45_000_005, "12:30:00.005000"),
    (logical("int", "time-millis"), "int", 86_400_000, "24:00:00"),
    (logical("long", "time-micros"), "long", 86_399_999_999, "23:59:59.999999"),
    (logical("long", "timestamp-millis"), "long", 1769860800000, "2026-01-31T12:00:00+00:00"),
    (logical("long", "timestamp-millis"), "long", -1, "1969-12-31T23:59:59.999000+00:00"),
    # What Debezium writes for `infinity` and `-infinity`.
    (logical("long", "timestamp-millis"), "long", 9223372036825200000, "+292278994-08-16T23:00:00+00:00"),
    (logical("long", "timestamp-millis"), "long", -9223372036832400000, "-292275055-05-16T23:00:00+00:00"),
    (logical("long", "timestamp-micros"), "long", MAX, "+294247-01-10T04:00:54.775807+00:00"),
    (logical("long", "timestamp-nanos"), "long", 1, "1970-01-01T00:00:00.000000001+00:00"),
    (logical("long", "timestamp-nanos"), "long", MIN, "1677-09-21T00:12:43.145224192+00:00"),
    (logical("long", "local-timestamp-millis"), "long", 1769860800500, "2026-01-31T12:00:00.500000"),
    (logical("long", "local-timestamp-micros"), "long", 1, "1970-01-01T00:00:00.000001"),
    (logical("long", "local-timestamp-nanos"), "long", 10**9, "1970-01-01T00:00:01"),
    (logical("bytes", "decimal", precision=6, scale=2), "bytes", b"\xfb\x1e", "-12.50"),
    (logical("bytes", "decimal", precision=1, scale=1), "bytes", b"\x01\xe2\x40", "12345.6"),
    (logical("bytes", "decimal", precision=40, scale=20), "bytes", b"\x01", "0.00000000000000000001"),
    (logical("bytes", "decimal", precision=4), "bytes", b"", "0"),
    ({**FIXED_12, "logicalType": "decimal", "precision": 20}, FIXED_12, b"\xff" * 12, "-1"),
    (logical("bytes", "big-decimal"), "bytes", b"\x04\xfb\x1e\x04", "-12.50"),
    ({**FIXED_12, "logicalType": "duration"}, FIXED_12, b"\1\0\0\0\2\0\0\0\xac\x0d\0\0", "P1M2DT3.500S"),
    (logical("string", "uuid"), "string", "not one", "not one"),
    (
        {**FIXED_16, "logicalType": "uuid"},
        FIXED_16,
        bytes(15) + b"\1",
        "00000000-0000-0000-0000-000000000001",
    ),
    (logical("int", "no-such-type"), "int", 7, 7),
    (logical("string", "date"), "string", "x", "x"),
    (
        {"type": "array", "items": logical("int", "date")},
        {"type": "array", "items": "int"},
        [0],
        ["1970-01-01"],
    ),
    ({"type": "map", "values": "bytes"}, {"type": "map", "values": "bytes"}, {"x": b"ab"}, {"x": "YWI="}),
]


@pytest.mark.parametrize(("schema", "written", "value", "expected"), EVERY_TYPE)
def test_each_type_as_json(schema: Any, written: Any, value: Any, expected: Any) -> None:
    names: dict[str, Any] = {}
    parsed = parse_schema(schema, named_schemas=names)
    assert read_value(parsed, names, plain(written, value)) == expected


@pytest.mark.parametrize(
    ("schema", "written", "value", "words"),
    [
        (logical("int", "time-millis"), "int", -1, "between 0 and 86400000, found -1"),
        (logical("long", "time-micros"), "long", MAX, "a time of day is between 0 and 86400000000"),
        (logical("bytes", "decimal", precision=4), "bytes", b"1" * 1025, "1025 bytes, the limit is 1024"),
        (
            logical("bytes", "decimal", precision=10**7, scale=10**7),
            "bytes",
            b"1",
            "a scale of 10000000, the limit is 4096",
        ),
        (logical("bytes", "big-decimal"), "bytes", b"\x09", "-5 bytes are needed"),
        ("string", "bytes", b"\xff", "a text is not UTF-8"),
    ],
)
def test_values_without_a_representation_are_named(schema: Any, written: Any, value: Any, words: str) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "x", "type": schema}]}
    inner = {"type": "record", "name": "R", "fields": [{"name": "x", "type": written}]}
    names: dict[str, Any] = {}
    parsed = parse_schema(record, named_schemas=names)
    with pytest.raises(UnreadableValue, match="field 'x': .*" + words):
        read_value(parsed, names, plain(inner, {"x": value}))


@given(NODES)
def test_values_equal_those_of_avros_reader(value: Any) -> None:
    raw = bytes_of(value)
    expected = schemaless_reader(io.BytesIO(raw), SCHEMA, None)
    assert read_value(SCHEMA, NAMES, raw) == json_of(expected)


def json_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: json_of(inner) for name, inner in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [json_of(inner) for inner in value]
    return value if not isinstance(value, float) else float_value(value)


@given(st.datetimes(timezones=st.just(timezone.utc)))
def test_times_equal_those_of_pythons_calendar(moment: datetime) -> None:
    micros = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)
    assert moment_value(micros, 10**6) == moment.isoformat()


@given(st.integers(-(2**31), 2**31 - 2))
def test_the_day_after_a_day_follows_it(days: int) -> None:
    def parts(text: str) -> tuple[int, int, int]:
        year, month, day = text.rsplit("-", 2)
        return int(year), int(month), int(day)

    assert parts(date_value(days)) < parts(date_value(days + 1))
