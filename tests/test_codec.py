from __future__ import annotations

import contextlib
import pickle
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import FORMAT, MOMENTS, NAMES, decode, encode, pack_state, unpack_state
from forebay.errors import ForebayError, MalformedRecord
from forebay.json_numbers import ExactFloat
from forebay.records import (
    DeadLetter,
    Event,
    KeyedEvent,
    Message,
    Request,
    Result,
    Sampling,
    Timeline,
    Timing,
    Usage,
)
from forebay.stateful.turns import KeyMemory, Turn

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
def test_record_round_trip(record: Any) -> None:
    assert decode(encode(record)) == record
    assert type(decode(encode(record))) is type(record)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, "\ud800", Message("user", "x"), [1, {"a": b"x", "b": object()}]]
)
def test_non_json_field_is_rejected(value: object) -> None:
    with pytest.raises(MalformedRecord, match="not a JSON value"):
        encode(Event(raw=b"", fields={"a": value}))


def test_endless_nesting_is_rejected() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(MalformedRecord):
        encode(Event(raw=b"", fields={"a": deep}))
    with pytest.raises(MalformedRecord):
        decode(b"\x91" * 100_000)


@given(records)
def test_a_record_with_other_fields_is_malformed(record: Any) -> None:
    values = msgpack.unpackb(encode(record), strict_map_key=False)
    for other in (values[:-1], [*values, None]):
        with pytest.raises(MalformedRecord):
            decode(msgpack.packb(other))


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
def test_state_round_trip(values: list[object]) -> None:
    assert unpack_state(pack_state(*values), "places") == values


def packed(value: object) -> bytes:
    try:
        return bytes(msgpack.packb(value))
    except OverflowError:  # An integer of more than 64 bits.
        return b""


@given(st.binary(max_size=50) | kept.map(packed))
def test_invalid_state_is_rejected_with_a_message(data: bytes) -> None:
    with contextlib.suppress(ForebayError):
        unpack_state(data, "places")


@pytest.mark.parametrize("found", [FORMAT + 1, FORMAT - 1, "1", 1.0, True, None, b"x" * 99])
def test_state_of_another_format_is_refused(found: object) -> None:
    message = f"the checkpoint's places: format .{{1,20}}; this Forebay reads format {FORMAT}: continue with"
    with pytest.raises(ForebayError, match=message):
        unpack_state(msgpack.packb([found, "x"]), "places")


def test_a_change_of_what_is_kept_has_another_format() -> None:
    layout = [*NAMES.values(), MOMENTS, *(tuple(each.__slots__) for each in (Turn, KeyMemory))]
    assert (FORMAT, crc32(repr(layout).encode())) == (4, 1344274029), "increase FORMAT, then change this test"


class Attack:
    """Ends the test if it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.exit, ("a pickle was read",))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [b"bytes", (1, 2.0, None), Attack()])
def test_a_pickle_is_refused_unread(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    with pytest.raises(ForebayError, match="the checkpoint's places cannot be read"):
        unpack_state(data, "places")
    with pytest.raises(MalformedRecord):
        decode(data)


@given(results)
def test_bytes_passed_by_java_as_numbers_are_read(result: Result) -> None:
    assert decode([byte - 256 if byte > 127 else byte for byte in encode(result)]) == result


def test_latency_is_from_the_sending_to_the_end() -> None:
    assert Timing(sent_s=10.0, done_s=12.5, first_token_s=11.0).latency_s == 2.5


def test_requests_share_no_mutable_state() -> None:
    assert Request(id="a", model="m").sampling == Sampling()
    assert Sampling().extra is not Sampling().extra
