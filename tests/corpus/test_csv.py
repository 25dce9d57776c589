"""CSV files: each row is a record with the columns of its own header, or a dead letter at its first line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.case import Refused, cases, check
from tests.corpus.sources import PACKINGS, read_file
from tests.corpus.way import check_way

from forebay.connectors.event_time import EventTime
from forebay.connectors.files.reader import LineReader
from forebay.connectors.formats import Format
from forebay.records import Event

pytestmark = pytest.mark.heavy

CSV = Format("csv")
SMALL = Format("csv", max_record_bytes=20)
TIMED = Format("csv", time=EventTime("at"))


@dataclass(frozen=True)
class Table:
    """A file and its records: the line of each, and its fields or the reason for refusal."""

    name: str
    content: bytes
    records: dict[int, Any]
    form: Format = CSV
    header: bool = True


def ab(a: str, b: str) -> dict[str, str]:
    return {"a": a, "b": b}


def rows(name: str, body: str, **records: Any) -> Table:
    """A table with the columns a and b; `_3`: the record in line 3."""
    return Table(name, b"a,b\n" + body.encode(), {int(line[1:]): record for line, record in records.items()})


OPEN = Refused("is not closed")
COLUMNS = (
    rows("two rows", "1,2\n3,4\n", _2=ab("1", "2"), _3=ab("3", "4")),
    rows("no end of the last line", "1,2", _2=ab("1", "2")),
    rows("CR LF", "1,2\r\n3,4\r\n", _2=ab("1", "2"), _3=ab("3", "4")),
    rows("empty lines", "1,2\n\n\r\n3,4\n", _2=ab("1", "2"), _5=ab("3", "4")),
    rows("empty fields", ",\n", _2=ab("", "")),
    rows("blanks are kept", " 1 , 2\n", _2=ab(" 1 ", " 2")),
    rows("a blank line", "  \n1,2\n", _2=Refused("1 columns, the header has 2"), _3=ab("1", "2")),
    rows("a column too few", "1\n1,2\n", _2=Refused("1 columns, the header has 2"), _3=ab("1", "2")),
    rows("a column too many", "1,2,3\n1,2\n", _2=Refused("3 columns, the header has 2"), _3=ab("1", "2")),
    rows("a comma at the end", "1,2,\n", _2=Refused("3 columns")),
    rows("semicolons", "1;2\n", _2=Refused("1 columns")),
    rows("numbers stay text", "007,1e400\n", _2=ab("007", "1e400")),
    rows("null stays text", "null,NaN\n", _2=ab("null", "NaN")),
    rows("line ends of Unicode", "1\u20282,3\u0085\u2029\n", _2=ab("1\u20282", "3\u0085\u2029")),
    rows("VT, FF and separators", "1\x0b\x0c,\x1c\x1d\x1e2\n", _2=ab("1\x0b\x0c", "\x1c\x1d\x1e2")),
    rows("formula", "=1+1,@x\n", _2=ab("=1+1", "@x")),
    rows("right to left", "\u202e1,א\n", _2=ab("\u202e1", "א")),
    rows("NUL", "1\0,2\n", _2=ab("1\0", "2")),
    rows("CR within a row", "1\r2,3\n", _2=Refused("tr '\\r' '\\n'")),
    rows("header again", "1,2\na,b\n3,4\n", _2=ab("1", "2"), _4=ab("3", "4")),
    rows("header in quotes again", '"a","b"\n3,4\n', _3=ab("3", "4")),
    rows("header and a blank is a row", "a,b \n", _2=ab("a", "b ")),
    rows("a field of 500 KiB", "x" * 512000 + ",2\n3,4\n", _2=ab("x" * 512000, "2"), _3=ab("3", "4")),
)
QUOTES = (
    rows("quoted", '"1","2"\n', _2=ab("1", "2")),
    rows("comma in quotes", '"1,2",3\n', _2=ab("1,2", "3")),
    rows("quote in quotes", '"1""2",3\n', _2=ab('1"2', "3")),
    rows("only quotes", '"""",""\n', _2=ab('"', "")),
    rows("line end in quotes", '"1\n2",3\n4,5\n', _2=ab("1\n2", "3"), _4=ab("4", "5")),
    rows("CR LF in quotes", '"1\r\n2",3\r\n4,5\r\n', _2=ab("1\r\n2", "3"), _4=ab("4", "5")),
    rows("CR in quotes", '"1\r2",3\n', _2=ab("1\r2", "3")),
    rows("empty lines in quotes", '"1\n\n\n2",3\n4,5\n', _2=ab("1\n\n\n2", "3"), _6=ab("4", "5")),
    rows("header in quotes of a row", '"1\na,b\n2",3\n', _2=ab("1\na,b\n2", "3")),
    rows("quote within a field", '1"2,3\n4,5\n', _2=ab('1"2', "3"), _3=ab("4", "5")),
    rows("inches", '5" pipe,6" pipe\n', _2=ab('5" pipe', '6" pipe')),
    rows("open to the end", '"1,2\n3,4\n', _2=OPEN, _3=ab("3", "4")),
    rows("open in the last line", '1,2\n"3,4', _2=ab("1", "2"), _3=OPEN),
    rows("text behind a quote", '"1"x,2\n3,4\n', _2=Refused("not a CSV row"), _3=ab("3", "4")),
    rows("text behind a later quote", '"1,2\n3,"x\n4,5\n', _2=OPEN, _3=OPEN, _4=ab("4", "5")),
    rows("blank before a quote", '1, "2"\n3,4\n', _2=ab("1", ' "2"'), _3=ab("3", "4")),
    rows("backslash is no escape", '"1\\",2\n', _2=ab("1\\", "2")),
    rows("typographic quotes", "“1,2”\n", _2=ab("“1", "2”")),
    rows("single quotes", "'1,2'\n", _2=ab("'1", "2'")),
    rows("quote alone", '"\n1,2\n', _2=OPEN, _3=ab("1", "2")),
    rows("two open rows", '"1,2\n"3,4\n5,6\n', _2=OPEN, _3=OPEN, _4=ab("5", "6")),
)
HEADERS = (
    Table("BOM", b"\xef\xbb\xbfa,b\n1,2\n", {2: ab("1", "2")}),
    Table("empty lines before", b"\n\r\na,b\n1,2\n", {4: ab("1", "2")}),
    Table("duplicate columns", b"a,a,a\n1,2,3\n", {2: {"a": "1", "a_2": "2", "a_3": "3"}}),
    Table("a number that is taken", b"a,a,a_2\n1,2,3\n", {2: {"a": "1", "a_3": "2", "a_2": "3"}}),
    Table("an empty name", b"a,\n1,2\n", {2: {"a": "1", "": "2"}}),
    Table("two empty names", b",\n1,2\n", {2: {"": "1", "_2": "2"}}),
    Table("blanks in names", b" a ,b\n1,2\n", {2: {" a ": "1", "b": "2"}}),
    Table("line end in a name", b'"a\nx",b\n1,2\n', {3: {"a\nx": "1", "b": "2"}}),
    Table("one column", b"a\n1\n\n2\n", {2: {"a": "1"}, 4: {"a": "2"}}),
    Table("only a header", b"a,b\n", {}),
    Table("an empty file", b"", {}),
    Table("only a BOM", b"\xef\xbb\xbf", {}),
    Table("reserved names", b"key,event,kafka\n1,2,3\n", {2: {"key": "1", "event": "2", "kafka": "3"}}),
    Table("open header", b'"a,b\n1,2\n', {1: OPEN, 2: Refused("the header of its file cannot be read")}),
    Table(
        "header of Latin-1",
        "ä,b\n1,2\n".encode("latin-1"),
        {
            1: Refused("the header is not UTF-8: byte 1 is 0xe4; if the file"),
            2: Refused("the columns have no"),
        },
    ),
    Table(
        "header above the limit",
        b"a," + b"b" * 30 + b"\n1,2\n",
        {1: Refused("the header has 32 bytes, the limit is 20"), 2: Refused("the columns have no names")},
        SMALL,
    ),
    Table("NFC and NFD", "é,e\u0301\n1,2\n".encode(), {2: {"é": "1", "e\u0301": "2"}}),
)
OTHER = (
    Table("semicolon", b"a;b\n1,5;2\n", {2: ab("1,5", "2")}, Format("csv", delimiter=";")),
    Table("tab", b'a\tb\n1\t" 2"\n', {2: ab("1", " 2")}, Format("csv", delimiter="\t")),
    Table("pipe", b"a|b\n1|2\n", {2: ab("1", "2")}, Format("csv", delimiter="|")),
    Table("tab, open", b'a\tb\n"1\t2\n3\t4\n', {2: OPEN, 3: ab("3", "4")}, Format("csv", delimiter="\t")),
    Table(
        "columns given",
        b"1,2\na,b\n",
        {1: ab("1", "2"), 2: ab("a", "b")},
        Format("csv", columns=("a", "b")),
        False,
    ),
    Table("at the limit", b"a,b\n" + b"x" * 18 + b",1\n", {2: ab("x" * 18, "1")}, SMALL),
    Table(
        "above the limit",
        b"a,b\n" + b"x" * 19 + b",1\n3,4\n",
        {2: Refused("21 bytes"), 3: ab("3", "4")},
        SMALL,
    ),
    Table(
        "lines above the limit",
        b'a,b\n"%s",1\n3,4\n' % (b"x\n" * 10),
        {2: Refused("24 bytes"), 13: ab("3", "4")},
        SMALL,
    ),
    Table("Latin-1", b"a,b\n\xe4,1\n3,4\n", {2: Refused("encoding: cp1252"), 3: ab("3", "4")}),
    Table("half a character", b"a,b\n\xc3,1\n3,4\n", {2: Refused("not UTF-8: byte 1"), 3: ab("3", "4")}),
    Table(
        "wrong byte in quotes", b'a,b\n"1\n\xff",2\n3,4\n', {2: Refused("not UTF-8: byte 4"), 4: ab("3", "4")}
    ),
    Table(
        "a time", b"at\n2026-03-01\nat\nx\n", {2: {"at": "2026-03-01"}, 4: Refused("is not iso8601")}, TIMED
    ),
)


@cases((*COLUMNS, *QUOTES, *HEADERS, *OTHER))
def test_each_row_of_a_file_is_accounted_for(case: Any, tmp_path: Path) -> None:
    for packing, pack in PACKINGS.items():
        path = tmp_path / packing
        path.write_bytes(pack(case.content))
        check_rows(case, path, f"{path.name}/in.jsonl" if packing == "zip" else path.name)


def check_rows(case: Table, path: Path, name: str) -> None:
    records = read_file(path, LineReader(case.form, case.header))
    assert [record.position for record in records] == [f"{name}@{line}" for line in case.records], records
    for record, (line, expected) in zip(records, case.records.items(), strict=True):
        where = f"{name}@{line}"
        check(record, expected, where)
        if isinstance(record, Event):
            check_way(record, replace(case.form, columns=tuple(record.fields)), where)
