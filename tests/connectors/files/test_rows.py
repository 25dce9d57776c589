from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.files.lines import MAX_ROW_LINES, LineReader, Progress, quote_open
from forebay.connectors.formats import Format, dead_letter_json
from forebay.records import DeadLetter, Event

COLUMNS = ("id", "text")
CSV = LineReader("f", Format("csv", columns=COLUMNS))


def read(reader: LineReader, lines: list[bytes]) -> list[Event | DeadLetter]:
    at, records = Progress(), []
    for line in lines:
        at, encoded = reader.step(at, line)
        records += [encoded] if encoded is not None else []
    at, encoded = reader.end(at)
    records += [encoded] if encoded is not None else []
    assert at.lines == len(lines)
    return [decode(record) for record in records]


CELL = st.text(alphabet=st.sampled_from(list('ab",;é \n'))) | st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0")
)


@given(
    st.lists(st.tuples(CELL, CELL)),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from(",;\t"),
)
def test_what_the_csv_module_writes_is_read(
    rows: list[tuple[str, str]], quoting: int, delimiter: str
) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=quoting, delimiter=delimiter, lineterminator="\n").writerows(rows)
    reader = LineReader("f", Format("csv", columns=COLUMNS, delimiter=delimiter))
    records = read(reader, out.getvalue().encode().split(b"\n"))
    assert [tuple(record.fields.values()) for record in records] == rows


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))))
def test_no_byte_of_any_line_is_lost(lines: list[bytes]) -> None:
    raws = [record.raw for record in read(CSV, lines)]
    assert b"".join(raws).replace(b"\n", b"") == b"".join(lines)


def test_lines_are_counted_from_one_and_empty_ones_are_no_records() -> None:
    records = read(LineReader("f", Format("text")), [b"a", b"", b"  ", b"b"])
    assert [(record.raw, record.position) for record in records] == [(b"a", "f@1"), (b"b", "f@4")]


def test_a_header_whose_time_column_holds_no_time_is_no_record() -> None:
    timed = Format("csv", columns=("id", "at"), time=EventTime("at"))
    reader = LineReader("f", timed, header=True)
    event, letter = read(reader, [b"id,at", b"1,2026-03-02T08:00:00Z", b"2,at"])
    assert isinstance(event, Event)
    assert isinstance(letter, DeadLetter)


def test_header_rows_are_no_records() -> None:
    reader = LineReader("f", Format("csv", columns=COLUMNS), header=True)
    assert [r.raw for r in read(reader, [b"id,text", b"1,a", b'"id","text"', b"2,b"])] == [b"1,a", b"2,b"]


def test_the_limit_counts_events_and_dead_letters() -> None:
    reader = LineReader("f", Format(), limit=2)
    assert [r.raw for r in read(reader, [b"{}", b"", b"bad", b"{}"])] == [b"{}", b"bad"]


def test_an_open_row_is_given_up_at_the_size_limit_and_reading_goes_on() -> None:
    reader = LineReader("f", Format("csv", columns=COLUMNS, max_record_bytes=10))
    records = read(reader, [b'1,"open', b"more", b"2,b"])
    assert [(type(r), r.raw) for r in records] == [(DeadLetter, b'1,"open\nmore'), (Event, b"2,b")]


def test_an_open_row_is_given_up_after_so_many_lines() -> None:
    records = read(CSV, [b'1,"open', *[b""] * MAX_ROW_LINES, b"2,b"])
    assert [type(record) for record in records] == [DeadLetter, Event]


def test_dead_letters_are_unwrapped_and_read_in_their_format() -> None:
    reader = LineReader("f", Format("csv", columns=COLUMNS), letters=True)
    letter = dead_letter_json(DeadLetter(b'1,"two\nlines"', "timeout", "d")).encode()
    good, bad = read(reader, [letter, b"no letter"])
    assert (good.raw, good.fields["text"]) == (b'1,"two\nlines"', "two\nlines")
    assert (bad.raw, bad.cause) == (b"no letter", "malformed_record")


def test_a_letters_time_is_that_of_a_record_without_one() -> None:
    letters = [DeadLetter(raw, "timeout", "d", time_ms=5) for raw in (b'{"at": 7}', b"{}", b"bad")]
    lines = [dead_letter_json(letter).encode() for letter in letters]
    untimed = LineReader("f", Format(), letters=True)
    assert [record.time_ms for record in read(untimed, lines)] == [5, 5, 5]
    timed = LineReader("f", Format(time=EventTime("at", "unix_ms")), letters=True)
    assert [record.time_ms for record in read(timed, lines)] == [7, 5, 5]


@pytest.mark.parametrize(
    ("line", "inside", "expected"),
    [
        (b'a,"b', False, True),
        (b'a,"b"', False, False),
        (b'a,"b""', False, True),
        (b'5" disk,b', False, False),
        (b'\xef\xbb\xbf"a', False, True),
        (b'end",b', True, False),
        (b'end","b', True, True),
        (b"", True, True),
        (b'""', True, True),
        (b'"', True, False),
    ],
)
def test_open_quotes(line: bytes, inside: bool, expected: bool) -> None:
    assert quote_open(line, ",", inside=inside) is expected
