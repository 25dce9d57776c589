"""The walk over a value takes exactly what Avro's reader takes, and no bytes hurt it."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.kafka.avro import check_value
from forebay.errors import MalformedRecord

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


@given(NODES, st.binary(max_size=5))
def test_every_value_that_was_written_is_one(value: Any, before: bytes) -> None:
    check_value(SCHEMA, NAMES, before + bytes_of(value), len(before))


@given(NODES, st.data())
def test_part_of_a_value_is_none(value: Any, data: st.DataObject) -> None:
    raw = bytes_of(value)
    with pytest.raises(MalformedRecord):
        check_value(SCHEMA, NAMES, raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(MalformedRecord, match="left over"):
        check_value(SCHEMA, NAMES, raw + b"\0")


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_can_be_read(raw: bytes) -> None:
    try:
        check_value(SCHEMA, NAMES, raw)
    except MalformedRecord:
        return
    with suppress(UnicodeDecodeError):
        schemaless_reader(io.BytesIO(raw), SCHEMA, None)


@pytest.mark.parametrize(
    ("schema", "raw", "words"),
    [
        ("string", b"\x01abc", "-1 bytes are wanted"),
        ("string", b"\x08abc", "4 bytes are wanted, 3 are left"),
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
def test_what_readers_take_without_a_look(schema: Any, raw: bytes, words: str | None) -> None:
    names: dict[str, Any] = {}
    parsed = parse_schema(schema, named_schemas=names)
    if words is None:
        check_value(parsed, names, raw)
    else:
        with pytest.raises(MalformedRecord, match=words):
            check_value(parsed, names, raw)


def test_a_schema_that_makes_a_flood_of_values_out_of_nothing_is_refused() -> None:
    schema: Any = {"type": "record", "name": "N0", "fields": [{"name": "x", "type": "null"}]}
    for number in range(1, 30):
        before = {"name": "b", "type": f"N{number - 1}"}
        schema = {"type": "record", "name": f"N{number}", "fields": [{"name": "a", "type": schema}, before]}
    names: dict[str, Any] = {}
    parsed = parse_schema(schema, named_schemas=names)
    with pytest.raises(MalformedRecord, match="more values"):
        check_value(parsed, names, b"")


def test_a_type_that_no_schema_has_told_of_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="unknown type 'Nobody'"):
        check_value("Nobody", {}, b"")
