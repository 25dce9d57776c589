"""Records of any bytes, results and dead letters as lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.codec import decode, encode
from forebay.connectors.formats import Format, dead_letter_json, parse_dead_letter, result_json
from forebay.errors import MalformedRecord
from forebay.json_numbers import dump_json
from forebay.records import DeadLetter, Event, Result, Timeline, Usage

CSV = Format("csv", columns=("id", "text"))
LINES = Format("text", pattern=r"(?P<level>[A-Z]+) (?P<user>@\w+ )?(?P<rest>.*)")


@given(st.binary(max_size=200), st.sampled_from([Format(), Format("text"), LINES, CSV]))
def test_any_bytes_give_a_record_that_can_be_encoded(raw: bytes, form: Format) -> None:
    record = form.read(raw)
    assert record.raw == raw
    assert decode(encode(record)) == record


def test_named_groups_of_a_line_are_fields() -> None:
    record = LINES.read(b"ERROR disk full")
    assert isinstance(record, Event)
    assert record.fields == {"text": "ERROR disk full", "level": "ERROR", "user": "", "rest": "disk full"}
    for line in (b"  at Main.java:7", b"  ERROR is not at the start"):
        letter = LINES.read(line)
        assert isinstance(letter, DeadLetter)
        assert (letter.cause, letter.detail) == ("malformed_record", "the line does not match line_pattern")


@pytest.mark.parametrize("pattern", [r"(?P<a>.*?) (?P<b>.*?): (?P<c>.*)", r"(?P<a>(?: +)+)x"])
def test_pattern_time_is_bounded(pattern: str) -> None:
    record = Format("text", pattern=pattern).read(b" " * (1 << 20))
    assert isinstance(record, DeadLetter)


NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)


LEAVES = st.none() | st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


@given(st.dictionaries(st.text(), VALUES))
def test_every_json_object_is_an_event(fields: dict[str, object]) -> None:
    assert Format().read(dump_json(fields)).fields == fields


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


TEXT = st.text()
MAYBE = st.none() | TEXT
LETTERS = st.builds(
    DeadLetter,
    raw=st.binary() | TEXT.map(lambda text: text.encode()),
    cause=TEXT,
    detail=TEXT,
    attempts=st.integers(0, 2**31),
    id=MAYBE,
    key=MAYBE,
    time_ms=st.none() | st.integers(-(2**62), 2**62),
    position=MAYBE,
    record_key=st.none() | st.binary(),
    headers=st.dictionaries(TEXT, st.binary(), max_size=3),
    record_ms=st.none() | st.integers(-(2**62), 2**62),
)
TOMBSTONE = DeadLetter(b"", "tombstone", "a tombstone: it has no value", record_key=b"k", record_ms=5)


@given(LETTERS)
@example(TOMBSTONE)
@example(replace(TOMBSTONE, cause="late"))
@example(replace(TOMBSTONE, raw=b"not empty"))
def test_dead_letters_are_read_back_unchanged(letter: DeadLetter) -> None:
    line = dead_letter_json(letter)
    assert "\n" not in line
    assert parse_dead_letter(line.encode()) == letter


def test_costs_are_written_with_all_their_digits() -> None:
    cost = 1_234_567_000_000_000_001
    letter = DeadLetter(b"x", "c", "d", cost_pico=cost)
    assert '"cost":1234567.000000000001' in dead_letter_json(letter)
    assert '"cost":1234567.000000000001' in result_json(replace(make_result("a"), cost_pico=cost))
    assert '"cost":0,' in result_json(replace(make_result("a"), cost_pico=0, timeline=Timeline(1)))
    assert "cost" not in result_json(make_result("a")) + dead_letter_json(replace(letter, cost_pico=None))


def test_utf8_is_written_as_text_and_other_bytes_as_base64() -> None:
    assert orjson.loads(dead_letter_json(DeadLetter("é".encode(), "c", "d")))["input"] == "é"
    assert orjson.loads(dead_letter_json(DeadLetter(b"\xff", "c", "d")))["input_base64"] == "/w=="


def test_a_cut_dead_letter_is_marked_and_not_read_as_its_record() -> None:
    letter = DeadLetter("aé".encode(), "c", "d", position="in@3")
    line = dead_letter_json(letter, input_bytes=2, cut_bytes={"headers": 7})
    assert orjson.loads(line)["input"] == "a"
    assert orjson.loads(line)["cut_bytes"] == {"input": 2, "headers": 7}
    with pytest.raises(MalformedRecord, match=r"cut by 2 bytes.* at the position 'in@3'"):
        parse_dead_letter(line)
    assert "cut_bytes" not in dead_letter_json(letter, input_bytes=3)
    assert parse_dead_letter(dead_letter_json(letter, cut_bytes={"detail": 7, "id": 1, "key": 1})) == letter


@pytest.mark.parametrize("name", ["headers", "record_key", "position"])
@pytest.mark.parametrize("letter", [DeadLetter(b"{}", "c", "d", position="t/0@1"), TOMBSTONE])
def test_dead_letter_without_key_headers_or_position_is_rejected(letter: DeadLetter, name: str) -> None:
    line = dead_letter_json(letter, cut_bytes={name: 7})
    assert orjson.loads(line)["cut_bytes"] == {name: 7}
    with pytest.raises(MalformedRecord, match=rf"the {name} of this dead letter was cut by 7 bytes"):
        parse_dead_letter(line)


def test_a_dead_letter_of_kafka_has_readable_key_and_headers() -> None:
    letter = DeadLetter(b"x", "c", "d", record_key=b"ann", headers={"a": b"b", "c": b"\xff"}, record_ms=7)
    about = {"time_ms": 7, "key": "ann", "headers": {"a": "b", "c": {"base64": "/w=="}}}
    assert orjson.loads(dead_letter_json(letter))["record"] == about
    assert "record" not in orjson.loads(dead_letter_json(DeadLetter(b"x", "c", "d")))


def test_a_tombstone_has_no_input() -> None:
    line = orjson.loads(dead_letter_json(TOMBSTONE))
    assert line["input"] is None
    assert "input_base64" not in line


def test_a_detail_with_lone_surrogates_is_written() -> None:
    assert "?" in dead_letter_json(DeadLetter(b"x", "c", "\ud800"))


@given(st.binary())
def test_other_lines_are_malformed(line: bytes) -> None:
    with pytest.raises(MalformedRecord):
        parse_dead_letter(line)


def make_result(answer: object) -> Result:
    return Result(
        id="i",
        key="k",
        fields={"text": "a\nb"},
        answer=answer,
        usage=Usage(1, 2, 0),
        attempts=1,
        read_ms=5,
        elapsed_s=0.5,
        called_s=0.25,
    )


def test_a_result_is_one_line_with_all_its_fields() -> None:
    result = make_result({"topic": "é"})
    value = orjson.loads(result_json(result))
    assert value["answer"] == {"topic": "é"}
    assert value["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0}
    assert "\n" not in result_json(result)
    assert "timeline" not in value
    timed = orjson.loads(result_json(replace(result, timeline=Timeline(1, 2))))
    assert timed["timeline"]["accepted_us"] == 2
    assert timed["timeline"]["sent_us"] is None


def test_key_and_headers_are_written_by_kafka_only() -> None:
    result = replace(make_result("a"), record_key=b"\xff", headers={"trace": b"1"})
    assert result_json(result) == result_json(make_result("a"))


def test_a_result_that_is_not_json_is_malformed() -> None:
    with pytest.raises(MalformedRecord, match="result i "):
        result_json(make_result(object()))


def test_reasoning_is_written_only_if_there_is_some() -> None:
    assert "reasoning" not in orjson.loads(result_json(make_result("a")))
    reasoned = replace(make_result("a"), reasoning="because \ud800")
    assert orjson.loads(result_json(reasoned))["reasoning"] == "because ?"
