"""Dead letters that are fed in again: the record that it was, or a dead letter that says why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tests.corpus.case import Refused, cases, check
from tests.corpus.sources import read_file
from tests.corpus.way import check_way

from forebay.connectors.files.reader import LineReader
from forebay.connectors.formats import Format
from forebay.json_numbers import ExactFloat
from forebay.records import Event

LETTER: Mapping[str, Any] = {
    "cause": "timeout",
    "detail": "too slow",
    "position": "in@3",
    "input": '{"a": 1}',
}
KAFKA = {"time_ms": 5, "key": "k", "headers": {}}
NO_LETTER = Refused("not a dead letter", "malformed_dead_letter")


@dataclass(frozen=True)
class Letter:
    """A line, its expected record, and more expectations."""

    name: str
    line: bytes
    expected: Any
    about: Mapping[str, Any]


def letter(name: str, changes: Mapping[str, Any], expected: Any, without: str = "", **about: Any) -> Letter:
    """A dead letter with `changes`, `without` one of its names."""
    made = {key: value for key, value in {**LETTER, **changes}.items() if key != without}
    return Letter(name, orjson.dumps(made), expected, about)


READ = (
    letter("as written", {}, {"a": 1}, position="in@3"),
    letter("no position", {}, {"a": 1}, "position", position="letters@1"),
    letter("null position", {"position": None}, {"a": 1}, position="letters@1"),
    letter("its time", {"time_ms": 5}, {"a": 1}, time_ms=5),
    letter("time before 1970", {"time_ms": -5}, {"a": 1}, time_ms=-5),
    letter("more names", {"mine": 1, "note": "x"}, {"a": 1}),
    letter("long number", {"input": '{"a": 18446744073709551616}'}, {"a": 2**64}),
    letter("1e400", {"input": '{"a": 1e400}'}, {"a": ExactFloat("1e400")}),
    letter("base64", {"input_base64": "eyJhIjogMn0="}, {"a": 2}, "input"),
    letter("not UTF-8 again", {"input_base64": "/w=="}, Refused("not UTF-8: byte 1"), "input", raw=b"\xff"),
    letter("malformed again", {"input": "no JSON"}, Refused("not JSON"), raw=b"no JSON", position="in@3"),
    letter("not about a record", {"input": ""}, Refused("too slow", "timeout"), raw=b""),
    letter("BOM kept", {"input": '\ufeff{"a": 1}'}, {"a": 1}, raw=b'\xef\xbb\xbf{"a": 1}'),
    letter("line ends in it", {"input": '{"a":\r\n1}'}, {"a": 1}, raw=b'{"a":\r\n1}'),
    letter("NUL in it", {"input": '{"a": "\0"}'}, Refused("not JSON")),
    letter("a dead letter in it", {"input": orjson.dumps(LETTER).decode()}, dict(LETTER)),
    letter("of Kafka", {"record": KAFKA, "position": "in/0@7"}, {"a": 1}, record_key=b"k", record_ms=5),
    letter("second topic", {"record": KAFKA, "position": "in~2/0@7"}, {"a": 1}, position="in~2/0@7"),
    letter(
        "binary key",
        {"record": {**KAFKA, "key": {"base64": "/w=="}}, "position": "in/0@7"},
        {"a": 1},
        record_key=b"\xff",
    ),
    letter("no key", {"record": {**KAFKA, "key": None}, "position": "in/0@7"}, {"a": 1}, record_key=None),
    letter("empty key", {"record": {**KAFKA, "key": ""}, "position": "in/0@7"}, {"a": 1}, record_key=b""),
    letter(
        "null header",
        {"record": {**KAFKA, "headers": {"h": None}}, "position": "in/0@7"},
        {"a": 1},
        headers={"h": None},
    ),
    letter(
        "headers of a file",
        {"record": {"headers": {"h": "v"}}},
        {"a": 1},
        headers={"h": b"v"},
        record_ms=None,
    ),
    letter(
        "sse",
        {"record": {"headers": {"sse-event": "e", "sse-id": "5"}}},
        {"a": 1, "sse": {"event": "e", "id": "5"}},
    ),
    letter(
        "sse of bytes",
        {"record": {"headers": {"sse-id": {"base64": "/w=="}}}},
        {"a": 1, "sse": {"event": None, "id": "\ufffd"}},
    ),
    letter(
        "tombstone",
        {"cause": "tombstone", "input": None, "record": KAFKA, "position": "in/0@7"},
        Refused("it has no value", "tombstone"),
        raw=b"",
    ),
    letter(
        "input cut",
        {"cut_bytes": {"input": 5}},
        Refused("cut by 5 bytes", "malformed_dead_letter"),
        position="letters@1",
    ),
    letter("headers cut", {"cut_bytes": {"headers": 5}}, Refused("cut by 5 bytes", "malformed_dead_letter")),
)
WRONG = (
    Letter("no JSON", b"no letter", NO_LETTER, {"raw": b"no letter", "position": "letters@1"}),
    Letter("a record", b'{"a": 1}', NO_LETTER, {}),
    Letter("a list", b"[]", NO_LETTER, {}),
    Letter("null", b"null", NO_LETTER, {}),
    Letter("a number", b"5", NO_LETTER, {}),
    Letter("not UTF-8", b'{"cause": "\xff"}', NO_LETTER, {}),
    Letter("1,100 levels", b"[" * 1100, NO_LETTER, {}),
    letter("no cause", {}, NO_LETTER, "cause"),
    letter("no input", {}, NO_LETTER, "input"),
    letter("null input", {"input": None}, NO_LETTER),
    letter("input is an object", {"input": {"a": 1}}, NO_LETTER),
    letter("not base64", {"input_base64": "%%"}, NO_LETTER, "input"),
    letter("base64 with line ends", {"input_base64": "eyJh\nIjogMn0="}, NO_LETTER, "input"),
    letter("time of text", {"time_ms": "5"}, NO_LETTER),
    letter("time of 2**63", {"time_ms": 2**63}, NO_LETTER),
    letter("time of 2**63 - 1", {"time_ms": 2**63 - 1}, NO_LETTER),
    letter("time with a fraction", {"time_ms": 5.5}, NO_LETTER),
    letter("attempts of text", {"attempts": "many"}, NO_LETTER),
    letter("record of text", {"record": "x"}, NO_LETTER),
    letter("headers of a list", {"record": {**KAFKA, "headers": ["h"]}}, NO_LETTER),
    letter("cut_bytes of text", {"cut_bytes": "5"}, NO_LETTER),
    letter("position of Kafka is none", {"record": KAFKA, "position": "in@7"}, NO_LETTER),
    letter("position of Kafka is a number", {"record": KAFKA, "position": 7}, NO_LETTER),
    letter("position is a number", {"position": 7}, NO_LETTER),
    letter("position is a list", {"position": ["in@7"]}, NO_LETTER),
    letter("record time of text", {"record": {**KAFKA, "time_ms": "5"}, "position": "in/0@7"}, NO_LETTER),
    letter("key is a list", {"record": {**KAFKA, "key": {}}, "position": "in/0@7"}, NO_LETTER),
    letter(
        "key is not base64",
        {"record": {**KAFKA, "key": {"base64": "*"}}, "position": "in/0@7"},
        NO_LETTER,
    ),
)


@cases((*READ, *WRONG))
def test_dead_letter_line_gives_the_original_record(case: Letter, tmp_path: Path) -> None:
    path = tmp_path / "letters"
    path.write_bytes(case.line + b"\n")
    (record,) = read_file(path, LineReader(Format(), letters=True))
    if isinstance(record, Event) and "sse" in record.fields:
        assert record.fields == case.expected
    else:
        check(record, case.expected, case.name)
    assert {name: getattr(record, name) for name in case.about} == case.about
    if case.expected is NO_LETTER:
        assert (record.raw, record.position) == (case.line, "letters@1")
    elif record.raw != case.line:
        check_way(record, Format(), case.name)
