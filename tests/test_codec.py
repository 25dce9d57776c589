"""Records as bytes."""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import NAMES, TAGS, decode, encode, not_pickled, pack_state, unpack_state
from forebay.errors import ForebayError, MalformedRecord
from forebay.json_numbers import ExactFloat
from forebay.records import DeadLetter, Event, KeyedEvent, Message, Result, Timeline, Usage

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
integers = st.integers(-(2**80), 2**80)
exact = st.builds(ExactFloat, st.from_regex(r"-?0\.[0-9]{18,40}(e-?[0-9]{1,3})?", fullmatch=True))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, st.floats(allow_nan=False), exact, text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(text, json_values, max_size=4)
keys = st.none() | st.binary(max_size=5)
headers = st.dictionaries(text, st.none() | st.binary(max_size=5), max_size=2)
times = st.none() | st.integers(-(2**62), 2**62)
names = st.none() | text
events = st.builds(
    Event,
    raw=st.binary(max_size=20),
    fields=objects,
    time_ms=times,
    position=names,
    record_key=keys,
    headers=headers,
    record_ms=times,
)
usages = st.builds(Usage, *[st.integers(0, 2**40)] * 3)
letters = st.builds(
    DeadLetter,
    raw=st.binary(max_size=20),
    cause=text,
    detail=text,
    attempts=st.integers(0, 99),
    id=names,
    key=names,
    time_ms=times,
    position=names,
    record_key=keys,
    headers=headers,
    record_ms=times,
)
moments = st.integers(0, 2**60)
timelines = st.none() | st.builds(Timeline, moments, *[st.none() | moments] * 5)
results = st.builds(
    Result,
    id=text,
    key=text,
    fields=objects,
    answer=json_values,
    usage=usages,
    attempts=st.integers(0, 99),
    read_ms=st.integers(0, 2**50),
    elapsed_s=st.floats(0, 1e6),
    called_s=st.floats(0, 1e6),
    time_ms=times,
    position=names,
    finish_reason=names,
    restored=st.booleans(),
    journaled=st.booleans(),
    record_key=keys,
    headers=headers,
    replica=names,
    timeline=timelines,
    raw=st.binary(max_size=5),
)
keyed = st.builds(
    KeyedEvent, id=text, key=text, event=events, read_ms=st.integers(0, 2**50), timeline=timelines
)
records = st.one_of(events, letters, results, keyed)


@given(records)
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert decode(encode(record)) == record
    assert type(decode(encode(record))) is type(record)


@given(records)
def test_bytes_of_a_version_with_fewer_fields_get_defaults(record: Any) -> None:
    tag, *values = msgpack.unpackb(encode(record), strict_map_key=False)
    needed = {Event: 2, DeadLetter: 3, Result: 9, KeyedEvent: 4}[type(record)]
    old = decode(msgpack.packb([tag, *values[:needed]]))
    for i, field in enumerate(fields(record)):
        kept = getattr(record, field.name)
        default = {} if field.name == "headers" else field.default
        assert getattr(old, field.name) == (kept if i < needed else default)


def test_an_event_inside_a_keyed_event_may_have_fewer_fields_too() -> None:
    data = msgpack.packb([TAGS[KeyedEvent], "i", "k", [b"raw", {"a": 1}], 5])
    assert decode(data) == KeyedEvent("i", "k", Event(b"raw", {"a": 1}), 5)


def test_the_order_of_fields_never_changes() -> None:
    # Checkpoints hold these positions: a new field goes last and has a default.
    assert NAMES[Event] == ("raw", "fields", "time_ms", "position", "record_key", "headers", "record_ms")
    assert NAMES[KeyedEvent] == ("id", "key", "event", "read_ms", "timeline")
    assert NAMES[DeadLetter][:8] == (
        "raw",
        "cause",
        "detail",
        "attempts",
        "id",
        "key",
        "time_ms",
        "position",
    )
    assert NAMES[Result][:9] == (
        "id",
        "key",
        "fields",
        "answer",
        "usage",
        "attempts",
        "read_ms",
        "elapsed_s",
        "called_s",
    )
    assert {Event: 1, DeadLetter: 2, Result: 3, KeyedEvent: 4} == TAGS


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, "\ud800", Message("user", "x"), [1, {"a": b"x", "b": object()}]]
)
def test_a_field_that_is_no_json_value_is_refused(value: object) -> None:
    with pytest.raises(MalformedRecord, match="not a JSON value"):
        encode(Event(raw=b"", fields={"a": value}))


def test_nesting_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(MalformedRecord):
        encode(Event(raw=b"", fields={"a": deep}))
    with pytest.raises(MalformedRecord):
        decode(b"\x91" * 100_000)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedRecord):
        decode(data)


@given(records, st.data())
def test_cut_or_changed_bytes_are_a_record_or_malformed(record: Any, data: st.DataObject) -> None:
    whole = bytearray(encode(record))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(whole), bytes(whole[:at])):
        with contextlib.suppress(MalformedRecord):
            decode(damaged)


kept = st.recursive(
    st.none() | integers | st.floats(allow_nan=False) | text | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(kept, max_size=4))
def test_state_survives(values: list[object]) -> None:
    assert unpack_state(pack_state(3, *values), 3, "places") == values


@given(st.binary(max_size=50) | kept.map(msgpack.packb))
def test_what_is_no_state_is_refused_in_words(data: bytes) -> None:
    with contextlib.suppress(ForebayError):
        unpack_state(data, 3, "places")


def test_state_of_another_format_is_refused() -> None:
    with pytest.raises(ForebayError, match="holds places in format 2, but this Forebay reads 3"):
        unpack_state(pack_state(2, "x"), 3, "places")


class Attack:
    """Unpickled, it would end the test."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.exit, ("a pickle was read",))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [b"bytes", (1, 2.0, None), Attack()])
def test_a_pickle_is_refused_unread(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    with pytest.raises(ForebayError, match="holds places as a Python pickle"):
        unpack_state(data, 3, "places")
    with pytest.raises(ForebayError, match="holds places as a Python pickle"):
        not_pickled(data, "places")
    with pytest.raises(MalformedRecord):
        decode(data)


@given(results)
def test_bytes_that_java_gave_as_numbers_are_read(result: Result) -> None:
    assert decode([byte - 256 if byte > 127 else byte for byte in encode(result)]) == result
