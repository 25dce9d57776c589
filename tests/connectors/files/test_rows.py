from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.files import lines as module
from forebay.connectors.files import reader as reader_module
from forebay.connectors.files.lines import quote_after
from forebay.connectors.files.reader import (
    FileCursor,
    FilesReader,
    LineReader,
    compare_headers,
    distinct,
    parts_of,
)
from forebay.connectors.formats import Format, dead_letter_json
from forebay.records import DeadLetter, Event

COLUMNS = ("id", "text")
CSV = LineReader(Format("csv", columns=COLUMNS))
HEADED = LineReader(Format("csv"), header=True)


def read_file(path: Path, reader: LineReader) -> list[Event | DeadLetter]:
    files = FilesReader(parts_of(path, reader), reader)
    return [decode(record) for _, record in files.records(FileCursor()) if record is not None]


@pytest.fixture(name="read")
def _read(tmp_path: Path) -> object:
    def read(reader: LineReader, content: bytes | list[bytes]) -> list[Event | DeadLetter]:
        data = content if isinstance(content, bytes) else b"\n".join(content)
        (tmp_path / "f").write_bytes(data)
        return read_file(tmp_path / "f", reader)

    return read


def found(records: list[Event | DeadLetter]) -> list[tuple[type, bytes, str | None]]:
    return [(type(record), record.raw, record.position) for record in records]


CELL = st.text(alphabet=st.sampled_from(list('ab",;é \n\r'))) | st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
)
ENCODINGS = st.sampled_from(
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252", "shift_jis"]
)


@given(
    st.lists(st.tuples(CELL, CELL)),
    st.tuples(
        st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        st.sampled_from(",;\t"),
        st.sampled_from(["\n", "\r\n"]),
        ENCODINGS,
    ),
    st.data(),
)
def test_rows_of_the_csv_module_are_read_back_across_restores(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    written: tuple[int, str, str, str],
    data: st.DataObject,
) -> None:
    quoting, delimiter, end, encoding = written

    def encodable(cell: str) -> str:
        return cell.encode(encoding.removesuffix("-sig"), "ignore").decode(encoding.removesuffix("-sig"))

    # Before Python 3.13, the csv module writes a carriage return without quotes and cannot read it back.
    dropped = "\r" if quoting == csv.QUOTE_MINIMAL else ""
    rows = [tuple(encodable(cell).replace(dropped, "") for cell in row) for row in rows]  # type: ignore[misc]
    out = io.StringIO(newline="")
    csv.writer(out, quoting=quoting, delimiter=delimiter, lineterminator=end).writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "f.csv"
    path.write_bytes(out.getvalue().encode(encoding))
    form = Format("csv", columns=COLUMNS, delimiter=delimiter)
    reader = LineReader(form, encoding=encoding)
    parts = parts_of(path, reader)
    files, cursor, records = FilesReader(parts, reader), FileCursor(), []
    for until in [*sorted(data.draw(st.lists(st.integers(0, files.size), max_size=5))), files.size]:
        if data.draw(st.booleans()):
            files = FilesReader(parts, reader)
        for after, record in files.records(cursor, until):
            cursor = after
            records += [decode(record)] if record is not None else []
    assert [tuple(record.fields.values()) for record in records] == rows
    begins = accumulate((1 + "".join(row).count("\n") for row in rows), initial=1)
    assert [record.position for record in records] == [
        f"f.csv@{line}" for _, line in zip(rows, begins, strict=False)
    ]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b""))))
def test_no_byte_of_any_line_is_lost(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("csv") / "f"
    path.write_bytes(b"\n".join(lines))
    raws = [record.raw for record in read_file(path, CSV)]
    # A byte order mark alone is an empty line.
    kept = [line for line in lines if line != b"\xef\xbb\xbf"]
    assert b"".join(raws).replace(b"\n", b"") == b"".join(kept)


def test_lines_count_from_one_and_empty_ones_are_skipped(read: object) -> None:
    records = read(LineReader(Format("text")), [b"a", b"", b"  ", b"b"])
    assert [(record.raw, record.position) for record in records] == [(b"a", "f@1"), (b"b", "f@4")]


def test_each_file_has_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b"id,text\n1,one\n")
    (tmp_path / "in" / "b.csv").write_bytes(b"text,id\ntwo,2\n")
    (tmp_path / "in" / "c.csv").write_bytes(b"")
    (tmp_path / "in" / "d.csv").write_bytes(b"id,body,more\n3,three,x\nid,text\n")
    records = read_file(tmp_path / "in", HEADED)
    assert [(record.position, getattr(record, "fields", None)) for record in records] == [
        ("in/a.csv@2", {"id": "1", "text": "one"}),
        ("in/b.csv@2", {"text": "two", "id": "2"}),
        ("in/d.csv@2", {"id": "3", "body": "three", "more": "x"}),
        ("in/d.csv@3", None),
    ]


def test_an_open_row_at_a_files_end_does_not_extend_into_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'1,"open\n2,b\n')
    (tmp_path / "b.csv").write_bytes(b'3,c"\n')
    assert [record.raw for record in read_file(tmp_path, CSV)] == [b'1,"open', b"2,b", b'3,c"']


def test_unreadable_header_affects_its_own_file_only(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,t\xe9xt\n1,one\n")
    (tmp_path / "b.csv").write_bytes(b"text,id\ntwo,2\n")
    header, row, good = read_file(tmp_path, HEADED)
    assert "the header is not UTF-8: byte 5 is 0xe9; if the file is in another encoding" in header.detail
    assert (row.raw, row.detail) == (
        b"1,one",
        "the header of its file cannot be read: the columns have no names",
    )
    assert good.fields == {"text": "two", "id": "2"}


@pytest.mark.heavy
def test_very_wide_header_is_cheap() -> None:
    names = ["a"] * 300_000
    columns = distinct(names)
    assert (len(columns), columns[1], columns[-1]) == (300_000, "a_2", "a_300000")
    (warning,) = compare_headers("f", names, "f", names)
    assert len(warning) < 300


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "text"])
def test_a_missing_encoding_is_named_in_each_dead_letter(read: object, kind: str, encoding: str) -> None:
    content = '{"text": "café"}\n{"text": "the café"}\n'.encode(encoding)
    records = read(LineReader(Format(kind, columns=("text",))), content)
    letters = [record for record in records if len(record.raw) > 3]
    assert all(f"`encoding: {encoding}`" in letter.detail for letter in letters)
    assert len(letters) == 2


def test_the_limit_counts_events_and_dead_letters(read: object) -> None:
    reader = LineReader(Format(), limit=2)
    assert [r.raw for r in read(reader, [b"{}", b"", b"bad", b"{}"])] == [b"{}", b"bad"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_the_missing_bytes_of_a_line_are_counted(
    read: object, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(reader_module, "LONGEST_LINE_BYTES", 10)
    reader = LineReader(Format(max_record_bytes=10), encoding=encoding)
    letter, event = read(reader, [b'"' + b"x" * 99, b"{}"])
    assert (letter.cause, len(letter.raw) + letter.cut_bytes) == ("malformed_record", 101)
    assert letter.cut_bytes > 80
    assert event.raw == b"{}"


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ('{"text": "' + 30 * "é" + '"}', Format()),
        ('1,"' + 30 * "é" + '"', CSV.format),
    ],
)
def test_a_line_that_is_too_long_has_its_size_and_no_other_fault(
    read: object, monkeypatch: pytest.MonkeyPatch, line: str, form: Format
) -> None:
    monkeypatch.setattr(reader_module, "LONGEST_LINE_BYTES", 20)
    form = replace(form, max_record_bytes=20)
    data = line.encode()
    letter, last = read(LineReader(form), [data, b"{}"])
    assert letter.detail == f"the line has {len(data) + 1} bytes, at most 20 are read"
    assert letter.position == "f@1"
    assert last.raw == b"{}"


def test_unclosed_quote_affects_its_line_only(read: object) -> None:
    good = [b"%d,good" % n for n in range(3, 2000)]
    records = read(CSV, [b"1,a", b'2,"open', *good])
    assert found(records[:3]) == [
        (Event, b"1,a", "f@1"),
        (DeadLetter, b'2,"open', "f@2"),
        (Event, b"3,good", "f@3"),
    ]
    assert records[1].detail == "the quote that opens in line 2 is not closed by the end of the file"
    assert [record.raw for record in records[2:]] == good


def test_quote_closed_by_the_next_row_affects_its_line_only(read: object) -> None:
    records = read(CSV, [b'1,"open', b"2,b", b'3,"good"', b'4,"two', b'lines"'])
    assert found(records) == [
        (DeadLetter, b'1,"open', "f@1"),
        (Event, b"2,b", "f@2"),
        (Event, b'3,"good"', "f@3"),
        (Event, b'4,"two\nlines"', "f@4"),
    ]
    expected = "the quote that opens in line 1 is not closed: in line 3, text follows the next quote"
    assert records[0].detail == expected


@pytest.mark.parametrize(("lines", "size"), [(5, 1 << 20), (10_000, 40)])
def test_search_for_the_end_of_a_row_is_bounded(
    read: object, monkeypatch: pytest.MonkeyPatch, lines: int, size: int
) -> None:
    monkeypatch.setattr(module, "MAX_ROW_LINES", lines)
    monkeypatch.setattr(module, "MAX_ROW_BYTES", size)
    records = read(CSV, [b'1,"open', *[b"%d,good" % n for n in range(2, 50)], b'x"'])
    assert [type(record) for record in records] == [DeadLetter, *[Event] * 48, DeadLetter]
    assert records[0].detail == "the quote that opens in line 1 is not closed within 6 lines"


HOSTILE = [b'a",,"c', b'a,"', b'"""', b'x",y,"', b'a,"b""', b"a,b", b'"a', b'",', b'""']


@given(st.lists(st.sampled_from(HOSTILE), max_size=60), st.integers(1, 20))
@example([b'a",,"c'] * 3, 2)
def test_lines_are_scanned_twice_and_the_last_ones_three_times(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], most: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "f"
    path.write_bytes(b"\n".join(lines))
    scanned = []

    def counted(line: bytes, delimiter: bytes, *, inside: bool) -> str:
        scanned.append(line)
        return quote_after(line, delimiter, inside=inside)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROW_LINES", most)
        patch.setattr(module, "quote_after", counted)
        records = read_file(path, LineReader(Format("csv", columns=("a", "b", "c"))))
    assert len(scanned) <= 2 * len(lines) + min(most, len(lines))
    raw = b"".join(record.raw for record in records)
    assert raw.replace(b"\n", b"") == b"".join(lines)


def test_dead_letters_are_unwrapped_and_read_in_their_format(read: object) -> None:
    reader = LineReader(Format("csv", columns=COLUMNS), letters=True)
    letter = dead_letter_json(DeadLetter(b'1,"two\nlines"', "timeout", "d")).encode()
    good, bad = read(reader, [letter, b"no letter"])
    assert (good.raw, good.fields["text"]) == (b'1,"two\nlines"', "two\nlines")
    assert (bad.raw, bad.cause) == (b"no letter", "malformed_dead_letter")


def test_dead_letter_time_applies_to_a_record_without_one(read: object) -> None:
    letters = [DeadLetter(raw, "timeout", "d", time_ms=5) for raw in (b'{"at": 7}', b"{}", b"bad")]
    lines = [dead_letter_json(letter).encode() for letter in letters]
    untimed = LineReader(Format(), letters=True)
    assert [record.time_ms for record in read(untimed, lines)] == [5, 5, 5]
    timed = LineReader(Format(time=EventTime("at", "unix_ms")), letters=True)
    assert [record.time_ms for record in read(timed, lines)] == [7, 5, 5]
