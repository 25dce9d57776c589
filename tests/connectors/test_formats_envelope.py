"""Records inside of another object."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode, encode
from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format
from forebay.records import DeadLetter, Event

ROW = {"id": 7, "text": "My router blinks red."}
SOURCE = {"db": "shop", "table": "tickets", "ts_ms": 1_700_000_000_000}
CHANGE = {"before": None, "after": ROW, "op": "c", "ts_ms": 1_700_000_000_123, "source": SOURCE}
CLOUD = {"specversion": "1.0", "id": "A-1", "source": "/desk", "time": "2026-01-01T00:00:00Z", "data": ROW}


def read(payload: str, value: Any, time: EventTime | None = None) -> Event | DeadLetter:
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    record = Format(time=time, payload=payload).read(raw, "t/0@1")
    assert (record.raw, record.position) == (raw, "t/0@1")
    return record


@pytest.mark.parametrize(
    ("payload", "value", "time", "time_ms"),
    [
        ("after", CHANGE, EventTime("envelope.ts_ms", "unix_ms"), 1_700_000_000_123),
        ("after", CHANGE, EventTime("envelope.source.ts_ms", "unix_ms"), 1_700_000_000_000),
        ("payload.after", {"schema": {"type": "struct"}, "payload": CHANGE}, None, None),
        ("data", CLOUD, EventTime("envelope.time"), 1_767_225_600_000),
        ("data", {**CLOUD, "data": orjson.dumps(ROW).decode()}, None, None),
        ("Message", {"Type": "Notification", "Message": orjson.dumps(ROW).decode()}, None, None),
    ],
)
def test_the_record_is_what_the_payload_holds(
    payload: str, value: dict[str, Any], time: EventTime | None, time_ms: int | None
) -> None:
    event = read(payload, value, time)
    assert isinstance(event, Event)
    *outer, last = payload.split(".")
    holder = value[outer[0]] if outer else value
    rest = {name: part for name, part in holder.items() if name != last}
    assert event.fields == {**ROW, "envelope": rest}
    assert event.time_ms == time_ms


def test_a_field_envelope_of_the_record_stays() -> None:
    event = read("after", {"after": {"envelope": "A5"}, "op": "c"})
    assert isinstance(event, Event)
    assert event.fields == {"envelope": "A5"}


@pytest.mark.parametrize(
    ("payload", "value", "cause", "words"),
    [
        (
            "after",
            {**CHANGE, "before": ROW, "after": None, "op": "d"},
            "no_record",
            "a deletion, its `op` is 'd'",
        ),
        ("after", {**CHANGE, "after": None}, "no_record", "the field 'after' is null"),
        (
            "data",
            {"specversion": "1.0", "id": "A-1"},
            "no_record",
            "'data' is missing; the value has specversion, id",
        ),
        ("payload.after", CHANGE, "no_record", "the field 'payload.after' is missing; the value has before"),
        ("payload.after", {"payload": None}, "no_record", "'payload.after' is missing"),
        ("after", {"after": [ROW]}, "malformed_record", "the field 'after' is list; expected an object"),
        ("after", {"after": 5}, "malformed_record", "the field 'after' is int"),
        ("after", {"after": "hello"}, "malformed_record", "the text in the field 'after': not JSON"),
        ("after", {"after": "[1]"}, "malformed_record", "a JSON object is needed, found an array"),
        ("after", b"[1]", "malformed_record", "a JSON object is needed, found an array"),
    ],
)
def test_a_value_without_a_record_is_a_dead_letter(payload: str, value: Any, cause: str, words: str) -> None:
    letter = read(payload, value)
    assert isinstance(letter, DeadLetter)
    assert letter.cause == cause
    assert words in letter.detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


@given(st.dictionaries(st.sampled_from(["after", "op", "payload", "envelope"]), JSON | st.just('{"a": 1}')))
def test_any_value_gives_a_record_that_can_be_encoded(value: dict[str, Any]) -> None:
    for payload in ("after", "payload.after", "op"):
        try:
            raw = orjson.dumps(value)
        except TypeError:
            return
        record = Format(payload=payload).read(raw)
        assert decode(encode(record)) == record
