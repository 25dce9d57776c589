from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode, encode
from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format, result_json
from forebay.engine.prompt import FieldTemplate
from forebay.json_numbers import dump_json
from forebay.records import DeadLetter, Event, Result, Usage

CSV = Format("csv", columns=("id", "text"))


@pytest.mark.parametrize(
    ("form", "raw", "fields"),
    [
        (Format(), b'{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        (Format(), b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (Format("text"), "é <b>".encode(), {"text": "é <b>"}),
        (CSV, b'1,"a ""b"", c"', {"id": "1", "text": 'a "b", c'}),
        (CSV, b'1,"two\nlines"', {"id": "1", "text": "two\nlines"}),
        (Format("csv", columns=("a", "b"), delimiter=";"), b"1,5;x", {"a": "1,5", "b": "x"}),
    ],
)
def test_good_records(form: Format, raw: bytes, fields: object) -> None:
    assert form.read(raw, "p@1") == Event(raw=raw, fields=fields, position="p@1")


def test_two_hundred_levels_are_read() -> None:
    assert isinstance(Format().read(b'{"a":' * 200 + b"1" + b"}" * 200), Event)
    assert isinstance(Format().read(b'{"a":' * 201 + b"1" + b"}" * 201), DeadLetter)
    assert isinstance(Format().read(b'{"a":[' + b"{}," * 500 + b"1]}"), Event)


@pytest.mark.parametrize(
    ("form", "raw", "says"),
    [
        (Format(), b"not json", "not JSON"),
        (Format(), b"", "not JSON"),
        (Format(), b"[1]", "an array"),
        (Format(), b"3", "a number"),
        (Format(), b"null", "null"),
        (Format(), b'{"a": NaN}', "not JSON"),
        (Format(), b'{"a": [{"b": 1%s}]}' % (b"0" * 1000), "field 'a[0].b' is 1000"),
        (Format(), b'{"a": "\\ud800"}', "not JSON"),
        (Format(), b'{"a": "\xff"}', "not UTF-8: byte 8 is 0xff (invalid start byte)"),
        (Format(), b'{"a":' * 900 + b"1" + b"}" * 900, "deeper than 200"),
        (Format(), b'{"a":' * 5000, "nested deeper than 200 levels"),
        (Format(max_record_bytes=5), b'{"a":1}', "7 bytes, the limit is 5"),
        (Format("text"), b"\xff", "not UTF-8"),
        (CSV, b"1,2,3", "3 columns, the header has 2"),
        (CSV, b'1,"x" y', "not a CSV row"),
        (CSV, b'1,"x', "not a CSV row"),
        (CSV, b"1," + b"x" * 200_000, "not a CSV row"),
        (Format(time=EventTime("at")), b'{"a":1}', "time field 'at' is missing"),
    ],
)
def test_bad_records_are_dead_letters_with_the_untouched_bytes(form: Format, raw: bytes, says: str) -> None:
    letter = form.read(raw, "p@1")
    assert isinstance(letter, DeadLetter)
    assert (letter.raw, letter.cause, letter.position) == (raw, "malformed_record", "p@1")
    assert says in letter.detail


def test_the_time_field_sets_the_time() -> None:
    event = Format(time=EventTime("at", "unix_s")).read(b'{"at": 2}')
    assert event.time_ms == 2000


@given(st.binary(max_size=200), st.sampled_from([Format(), Format("text"), CSV]))
def test_any_bytes_give_a_record_that_can_be_encoded(raw: bytes, form: Format) -> None:
    record = form.read(raw)
    assert record.raw == raw
    assert decode(encode(record)) == record


NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    "literal",
    ["18446744073709551617", "-9223372036854775809", "0.1000000000000000055", "3.6666666666666667", "1e400"],
)
def test_a_number_keeps_its_digits_from_the_source_to_the_sink(literal: str) -> None:
    raw = b'{"a":{"n":[%s,1.5]}}' % literal.encode()
    event = decode(encode(Format().read(raw)))
    answer = event.fields["a"]
    line = result_json(decode(encode(Result("i", "k", event.fields, answer, Usage(), 1, 5, 0.5, 0.25))))
    assert line.count(f'{{"n":[{literal},1.5]}}') == 2
    assert FieldTemplate("{{ a.n[0] }}", what="id").render(event.fields) == literal


LEAVES = st.none() | st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


@given(st.dictionaries(st.text(), VALUES))
def test_every_json_object_is_an_event(fields: dict[str, object]) -> None:
    assert Format().read(dump_json(fields)).fields == fields
