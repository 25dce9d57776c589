"""Many records in one input: each is accounted for at its own line, whatever its neighbours are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.case import Case, Refused, cases, check
from tests.corpus.sources import PACKINGS, read_file
from tests.corpus.test_envelopes import CASES as ENVELOPES
from tests.corpus.test_numbers import CASES as NUMBERS
from tests.corpus.test_objects import CASES as OBJECTS
from tests.corpus.test_texts import CASES as TEXTS

from forebay.connectors.files.reader import FileCursor, FilesReader, LineReader, parts_of
from forebay.connectors.formats import BOM, Format
from forebay.pipeline.ask import Lines
from forebay.records import DeadLetter, Event

JSON_CASES = [case for case in (*NUMBERS, *OBJECTS) if case.form == Format() and b"\n" not in case.raw]
TEXT_CASES = [case for case in TEXTS if case.form == Format("text") and case.raw.strip()]


def check_all(records: list[Event | DeadLetter], of: list[Case], place: str) -> None:
    assert len(records) == len(of)
    for number, (record, case) in enumerate(zip(records, of, strict=True), 1):
        assert record.position == f"{place}{number}", case.name
        check(record, case.expected, case.name)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CR LF"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_all_records_in_one_file(packing: str, end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in"
    name = "in/in.jsonl@" if packing == "zip" else "in@"
    for of in (JSON_CASES, TEXT_CASES, [case for case in ENVELOPES if case.form.payload == "after"]):
        path.write_bytes(PACKINGS[packing](b"".join(case.raw + end for case in of)))
        check_all(read_file(path, LineReader(of[0].form)), of, name)


def test_reader_restarted_after_each_record(tmp_path: Path) -> None:
    path = tmp_path / "in"
    of = [case for case in JSON_CASES if len(case.raw) < 1000]
    path.write_bytes(b"".join(case.raw + b"\n" for case in of))
    reader = LineReader(Format())
    parts = parts_of(path, reader)
    whole = list(FilesReader(parts, reader).records(FileCursor()))
    assert len(whole) == len(of)
    cursor, again = FileCursor(), []
    while found := next(FilesReader(parts, reader).records(cursor), None):
        cursor = found[0]
        again.append(found)
    assert again == whole


@pytest.mark.parametrize("kind", ["jsonl", "text"])
def test_all_records_of_standard_input(kind: Any) -> None:
    of = JSON_CASES if kind == "jsonl" else TEXT_CASES
    lines = Lines(io.BytesIO(b"".join(case.raw + b"\r\n" for case in of)), kind)
    records = []
    while (record := lines.next()) is not None:
        records.append(record)
    check_all(records, of, "line ")


STDIN = (
    Case("JSON by its brace", b'\n {"a": 1}\n', {"a": 1}),
    Case("JSON behind a BOM", BOM + b'{"a": 1}', {"a": 1}),
    Case("text", b"hello\n", {"text": "hello"}),
    Case("a list is text", b'[{"a": 1}]\n', {"text": '[{"a": 1}]'}),
    Case("a number is text", b"1e400\n", {"text": "1e400"}),
    Case("no end", b"hello", {"text": "hello"}),
    Case("broken JSON is JSON", b'{"a": \n', Refused("not JSON")),
    Case("Latin-1", "grün\n".encode("latin-1"), Refused("iconv -f cp1252 -t utf-8")),
    Case("UTF-16", "hello\n".encode("utf-16"), Refused("iconv -f utf-16 -t utf-8")),
    Case("UTF-16 without BOM", "hello\n".encode("utf-16-le"), Refused("iconv -f utf-16 -t utf-8")),
    Case("JSON of UTF-16", '{"a": 1}\n'.encode("utf-16-le"), Refused("iconv -f utf-16 -t utf-8")),
    Case("1 MiB", b"x" * (1 << 20) + b"\n", {"text": "x" * (1 << 20)}),
    Case("1 MiB and a byte", b"x" * ((1 << 20) + 1) + b"\r\n", Refused("the limit is 1048576")),
    Case("1 MiB before CR LF", b"x" * (1 << 20) + b"\r\n", {"text": "x" * (1 << 20)}),
    Case("20 MiB", b"x" * (20 << 20), Refused("the limit is 1048576")),
)


@cases(STDIN)
def test_the_first_line_of_standard_input(case: Case) -> None:
    record = Lines(io.BytesIO(case.raw)).next()
    assert record is not None
    check(record, case.expected)


def test_empty_standard_input() -> None:
    for content in (b"", b"\n\n", b" \r\n\t\n"):
        assert Lines(io.BytesIO(content)).next() is None
