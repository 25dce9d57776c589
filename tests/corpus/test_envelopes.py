"""Records within another object: change events of Debezium, CloudEvents, notifications."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.corpus.case import Case, Refused, cases, check
from tests.corpus.sources import everywhere
from tests.corpus.way import check_way

from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import Format
from forebay.json_numbers import ExactFloat

NO_RECORD = "no_record"
ROW = {"id": 1, "text": "hi"}


def inside(name: str, path: str, value: Any, expected: Any) -> Case:
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    return Case(name, raw, expected, Format(payload=path))


def gone(words: str) -> Refused:
    return Refused(words, NO_RECORD)


CHANGE = {"before": None, "after": ROW, "op": "c", "ts_ms": 5}
CLOUD = {"specversion": "1.0", "id": "A-1", "data": ROW}
CASES = (
    inside("create", "after", CHANGE, {**ROW, "envelope": {"before": None, "op": "c", "ts_ms": 5}}),
    inside(
        "create with a schema",
        "payload.after",
        {"schema": {"type": "struct"}, "payload": CHANGE},
        {**ROW, "envelope": {"before": None, "op": "c", "ts_ms": 5}},
    ),
    inside(
        "delete",
        "after",
        {"before": ROW, "after": None, "op": "d"},
        gone("it is a deletion, its `op` is 'd'"),
    ),
    inside("truncate", "after", {"op": "t"}, gone("the field 'after' is missing; the value has op")),
    inside("null", "after", {"after": None}, gone("the field 'after' is null")),
    inside("heartbeat", "after", {"ts_ms": 5}, gone("the value has ts_ms")),
    inside("without its schema", "payload.after", CHANGE, gone("the field 'payload.after' is missing")),
    inside("null on the way", "payload.after", {"payload": None}, gone("is missing")),
    inside("text on the way", "payload.after", {"payload": "after"}, gone("is missing")),
    inside("list on the way", "payload.after", {"payload": [CHANGE]}, gone("is missing")),
    inside("own envelope", "after", {"after": {"envelope": 1}, "op": "c"}, {"envelope": 1}),
    inside("empty row", "after", {"after": {}}, {"envelope": {}}),
    inside("a row with after", "after", {"after": {"after": 1}}, {"after": 1, "envelope": {}}),
    inside("CloudEvent", "data", CLOUD, {**ROW, "envelope": {"specversion": "1.0", "id": "A-1"}}),
    inside(
        "CloudEvent without data",
        "data",
        {"id": "A-1"},
        gone("the field 'data' is missing; the value has id"),
    ),
    inside("CloudEvent of base64", "data", {"data_base64": "e30="}, gone("the value has data_base64")),
    inside("data as text", "data", {"data": '{"id": 1}'}, {"id": 1, "envelope": {}}),
    inside(
        "data as text with BOM",
        "data",
        {"data": '\ufeff{"id": 1}'},
        Refused("the text in the field 'data': not JSON"),
    ),
    inside("data of words", "data", {"data": "hello"}, Refused("the text in the field 'data': not JSON")),
    inside("data of empty text", "data", {"data": ""}, Refused("the text in the field 'data'")),
    inside(
        "data is a list", "data", {"data": [ROW]}, Refused("the field 'data' is list; expected an object")
    ),
    inside("data is a number", "data", {"data": 5}, Refused("the field 'data' is int")),
    inside("data is false", "data", {"data": False}, Refused("the field 'data' is bool")),
    inside("text of a list", "data", {"data": "[1]"}, Refused("found an array")),
    inside("text of null", "data", {"data": "null"}, Refused("found null")),
    inside("text in text", "data", {"data": '"{}"'}, Refused("found a string")),
    inside(
        "text too deep",
        "data",
        {"data": '{"a":' + "[" * 990 + "9" * 20 + "]" * 990 + "}"},
        Refused("200 levels"),
    ),
    inside("long number", "after", b'{"after": {"n": 18446744073709551616}}', {"n": 2**64, "envelope": {}}),
    inside(
        "long number in text",
        "after",
        b'{"after": "{\\"n\\": 1e400}"}',
        {"n": ExactFloat("1e400"), "envelope": {}},
    ),
    inside(
        "long number around", "after", b'{"after": {}, "n": 1e400}', {"envelope": {"n": ExactFloat("1e400")}}
    ),
    inside("half in text", "data", b'{"data": "{\\"a\\": \\"\\\\ud800\\"}"}', Refused("not JSON")),
    inside("the last of two", "after", b'{"after": null, "after": {"a": 1}}', {"a": 1, "envelope": {}}),
    inside("no object", "after", b"[1]", Refused("found an array")),
    inside("dunder", "__class__", {"a": 1}, gone("the field '__class__' is missing")),
    inside("empty name", "", {"": {"a": 1}}, {"a": 1, "envelope": {}}),
)


@pytest.mark.heavy
@cases(CASES)
def test_enclosed_record_is_read_or_rejected(case: Case, tmp_path: Path) -> None:
    for source, record in everywhere(case.raw, case.form, tmp_path):
        check(record, case.expected, source)
        assert record.raw == case.raw, source
        check_way(record, case.form, source)


def test_time_may_be_in_the_row_or_its_envelope(tmp_path: Path) -> None:
    form = Format(payload="after")
    for path in ("at", "envelope.ts_ms"):
        timed = replace(form, time=EventTime(path, "unix_ms"))
        for source, record in everywhere(b'{"after": {"at": 5}, "ts_ms": 5}', timed, tmp_path):
            check(record, {"at": 5, "envelope": {"ts_ms": 5}}, source)
            assert record.time_ms == 5
        for source, record in everywhere(b'{"after": null, "ts_ms": 5}', timed, tmp_path):
            check(record, gone("is null"), source)
