"""Dead letters as input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds.feed import Mark
from forebay.connectors.feeds.sse import SseDecoder, SseFeed
from forebay.connectors.formats import Format, dead_letter_json, with_added
from forebay.connectors.kafka.source import read_record
from forebay.connectors.letters import read_letter
from forebay.records import DeadLetter, Event

PLACE = {"topic": "tickets", "partition": 0, "offset": 17, "time_ms": 1_000}


def given_up(record: Event | DeadLetter) -> bytes:
    """The line of a record's dead letter."""
    if isinstance(record, DeadLetter):
        return dead_letter_json(record).encode()
    letter = DeadLetter(
        record.raw,
        "timeout",
        "too slow",
        id=record.position,
        time_ms=record.time_ms,
        position=record.position,
        record_key=record.record_key,
        headers=record.headers,
        record_ms=record.record_ms,
    )
    return dead_letter_json(letter).encode()


@given(
    key=st.none() | st.binary(),
    value=st.sampled_from([b'{"text": "hi", "at": 5}', b'{"text": "hi"}', b"no json", b"\xff"]),
    headers=st.dictionaries(st.text(min_size=1), st.binary(), max_size=3),
    generation=st.sampled_from(["tickets/0@17", "tickets~2/0@17"]),
    form=st.sampled_from([Format(), Format("text"), Format(time=EventTime("at", "unix_ms"))]),
)
def test_kafka_record_is_restored_completely(
    key: bytes | None, value: bytes, headers: dict[str, bytes], generation: str, form: Format
) -> None:
    first = read_record(form, key, value, headers, PLACE, position=generation)
    assert read_letter(form, given_up(first), "letters/0@3") == first


def test_a_record_of_a_file_keeps_its_position_and_its_time() -> None:
    event = Event(b'{"a": 1}', {"a": 1}, 5, "in.jsonl@17", record_key=b"k", headers={"h": b"v"})
    assert read_letter(Format(), given_up(event), "letters.jsonl@1") == event
    nowhere = replace(event, position=None)
    assert read_letter(Format(), given_up(nowhere), "letters.jsonl@1").position == "letters.jsonl@1"


@pytest.mark.parametrize("position", [None, "", "tickets", "tickets/0@x", "tick ets/0@1", "t/0@" + "9" * 400])
def test_kafka_position_is_validated(position: Any) -> None:
    line = given_up(Event(b"{}", {}, position=position, record_ms=1))
    read = read_letter(Format(), line, "letters.jsonl@1")
    assert isinstance(read, DeadLetter)
    assert (read.raw, read.cause, read.position) == (line, "malformed_dead_letter", "letters.jsonl@1")


@pytest.mark.parametrize("cause", ["unread_file", "too_large_for_sink"])
@pytest.mark.parametrize("form", [Format(), Format("text")])
def test_dead_letter_without_a_record_stays_the_same(cause: str, form: Format) -> None:
    letter = DeadLetter(b"", cause, "from line 5 on: the file was removed", position="in/a.csv@5-")
    line = dead_letter_json(letter).encode()
    assert read_letter(form, line, "letters.jsonl@1") == letter
    nowhere = read_letter(form, dead_letter_json(replace(letter, position=None)).encode(), "letters.jsonl@1")
    assert nowhere == replace(letter, position="letters.jsonl@1")


@pytest.mark.parametrize("sent", [b"event: sale\nid: 7\n", b"", b"id: 7\n"])
@pytest.mark.parametrize("data", [b'{"a": 1}', b'{"sse": {"event": "own"}}'])
def test_feed_event_keeps_its_type_and_id(sent: bytes, data: bytes) -> None:
    (event,) = SseDecoder().feed(sent + b"data: " + data + b"\n\n")
    received = SseFeed("https://stream.wikimedia.org/v2/stream/recentchange")._received(Mark(), event)
    assert received is not None
    fields = with_added(orjson.loads(data), received.fields)
    given = Event(received.raw, fields, position=received.position, headers=received.headers)
    assert read_letter(Format(), given_up(given), "letters.jsonl@1") == given


@pytest.mark.parametrize(
    "line",
    [
        b"no letter",
        b"\xff",
        b'{"text": "a record"}',
        b'{"cause": "late", "detail": "d", "input": "{\\"a\\": 1}", "position": 5}',
        dead_letter_json(DeadLetter(b'{"a": 1}', "late", "d"), cut_bytes={"input": 9}).encode(),
        given_up(Event(b"{}", {}, position="nowhere", record_ms=1)),
    ],
)
@pytest.mark.parametrize("form", [Format(), Format("text")])
def test_rejected_line_stays_the_same_dead_letter(line: bytes, form: Format) -> None:
    first = read_letter(form, line, "letters.jsonl@1")
    assert isinstance(first, DeadLetter)
    assert (first.cause, first.raw) == ("malformed_dead_letter", line)
    kept = replace(first, record_key=b"k", headers={"h": b"v"}, record_ms=9)
    for letter in (first, kept):
        assert read_letter(form, given_up(letter), "again.jsonl@1") == letter


def test_earlier_rejected_line_may_be_readable() -> None:
    event = Event(b'{"a": 1}', {"a": 1}, 5, "in.jsonl@17")
    refused = DeadLetter(given_up(event), "malformed_dead_letter", "d", position="letters.jsonl@1")
    assert read_letter(Format(), given_up(refused), "again.jsonl@1") == event
