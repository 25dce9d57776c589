from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from forebay.api.kafka_records import WriteObject, key_of
from forebay.api.models import AnswerModel, ReadResult
from forebay.api.objects import function_of
from forebay.codec import encode
from forebay.connectors.kafka.written import record_bytes
from forebay.errors import FunctionFailed, SettingError
from forebay.records import DeadLetter, Event, Result, Usage


class Triage(BaseModel):
    team: str


RESULT = Result(
    "1",
    "ann",
    {"customer": "c7"},
    {"team": "network"},
    Usage(),
    1,
    0,
    0.0,
    0.0,
    record_key=b"k",
    headers={"channel": b"chat"},
)
READ = ReadResult(AnswerModel(Triage))
HEADERS = {"channel": b"chat", "forebay-id": b"1"}


def test_dead_letter_is_cut_to_fit() -> None:
    letter = DeadLetter(b"x" * 50_000, "late", "too late", record_key=b"k")
    for key in (None, lambda letter: "mine"):
        record = WriteObject(key, limit_bytes=40_000)(letter)
        assert record[0] == (b"k" if key is None else b"mine")
        assert 39_990 < record_bytes(*record) <= 40_000
        assert orjson.loads(record[1])["cut_bytes"]["input"] > 10_000


def test_too_large_value_fails_the_job_with_the_fix() -> None:
    words = r"^write_kafka 't': writing failed for the result with id '1'.*: TooLargeForSink: 9 bytes; write"
    with pytest.raises(FunctionFailed, match=words) as failed:
        WriteObject(where="write_kafka 't'").refused(RESULT, "9 bytes")
    assert function_of(f"FunctionFailed: {failed.value}") == "write_kafka 't': writing"


@pytest.mark.parametrize(
    ("element", "letter"),
    [
        (
            replace(RESULT, raw=b"{}", position="in@1"),
            DeadLetter(b"{}", "", "", 1, "1", "ann", None, "in@1", b"k", {"channel": b"chat"}),
        ),
        ({"a": 1}, DeadLetter(b'{"a":1}', "", "")),
        ("text", DeadLetter(b"text", "", "")),
        (Triage(team="a"), DeadLetter(b'{"team":"a"}', "", "")),
        (
            Event(b"r", {}, position="p", record_key=b"k"),
            DeadLetter(b"r", "", "", position="p", record_key=b"k"),
        ),
        (7, DeadLetter(b"7", "", "")),
    ],
)
def test_too_large_value_can_be_a_dead_letter(element: Any, letter: DeadLetter) -> None:
    found = WriteObject(too_large="dead_letter").refused(element, "9 bytes")
    assert found == replace(letter, cause="too_large_for_sink", detail="9 bytes")


def test_too_large_dead_letter_keeps_its_cause() -> None:
    letter = DeadLetter(b"x", "late", "too late", 3, position="t/0@1")
    found = WriteObject(value=str, too_large="dead_letter").refused(letter, "9 bytes")
    words = "9 bytes; it was a dead letter before: late: too late"
    assert found == replace(letter, cause="too_large_for_sink", detail=words)


def test_result_with_a_model_answer_is_written_as_json() -> None:
    key, value, headers = WriteObject()(replace(READ(encode(RESULT)), fields={}))
    assert (key, headers) == (b"k", HEADERS)
    assert orjson.loads(value)["answer"] == {"team": "network"}


def test_key_and_headers_are_kept_with_a_custom_value() -> None:
    write = WriteObject(value=lambda result: {"team": result.answer.team}, read=READ)
    assert write(encode(RESULT)) == (b"k", b'{"team":"network"}', HEADERS)
    letter = DeadLetter(b"x", "late", "too late", position="t/0@1", record_key=b"k")
    headers = {"forebay-id": b"t/0@1", "forebay-cause": b"late"}
    assert WriteObject(value=lambda letter: letter.cause)(letter) == (b"k", b'"late"', headers)


@pytest.mark.parametrize(
    ("given", "element", "key"),
    [
        ("{{ customer }}", RESULT, b"c7"),
        ("{{ customer }}", {"customer": "c8", "n": 1}, b"c8"),
        ("{{ key }}", {"key": "k9"}, b"k9"),
        ("{{ key }}", {"key": None}, None),
        ("{{ key }}", {"key": " "}, None),
        ("{{ team }}", Triage(team="billing"), b"billing"),
        ("{{ text }}", "a text", b"a text"),
        (lambda result: result.key, RESULT, b"ann"),
        (lambda result: b"\xff", RESULT, b"\xff"),
        (lambda result: None, RESULT, None),
        (lambda result: "\ud800", RESULT, b"?"),
    ],
)
def test_key_function_is_applied_to_each_element(given: Any, element: Any, key: bytes | None) -> None:
    assert WriteObject(key_of(given, None))(element)[0] == key


def test_failing_key_function_is_reported() -> None:
    with pytest.raises(FunctionFailed, match=r"key failed for the dict \{'n': 1\}: FieldMissing.*customer"):
        WriteObject(key_of("{{ customer }}", None))({"n": 1})
    with pytest.raises(FunctionFailed, match="the event has no fields"):
        WriteObject(key_of("{{ customer }}", None))(5)
    with pytest.raises(FunctionFailed, match=r"key failed for the dict .*holds half a character"):
        WriteObject(key_of("{{ customer }}", None))({"customer": "a\ud800"})
    with pytest.raises(FunctionFailed, match="the key must be text, bytes or None, found int"):
        WriteObject(key_of(lambda element: 5, None))({"n": 1})


def test_error_in_value_names_sink_function_and_record() -> None:
    write = WriteObject(value=lambda result: result.answer.tem, read=READ, where="write_kafka 'teams'")
    with pytest.raises(FunctionFailed) as raised:
        write(encode(RESULT))
    assert str(raised.value) == (
        "write_kafka 'teams': value failed for the result with id '1' and key 'ann': AttributeError: "
        "'Triage' object has no attribute 'tem'"
    )
    with pytest.raises(FunctionFailed, match=r"value failed for .*: TypeError: Type is not JSON .*: object"):
        WriteObject(value=lambda result: object())(RESULT)


@pytest.mark.parametrize(
    ("given", "holds", "words"),
    [
        ("customer", None, r"'customer' names no field; write a template such as '\{\{ customer \}\}'"),
        ("{{ customer", None, "key"),
        (b"customer", None, "expected a template or a function, found a value of type bytes"),
        ("{{ customer }}", DeadLetter, "a dead letter has no fields"),
    ],
)
def test_invalid_key_is_reported_at_the_call(given: Any, holds: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        key_of(given, holds)


def test_serializer_can_be_pickled() -> None:
    write = pickle.loads(pickle.dumps(WriteObject(key_of("{{ customer }}", None))))
    assert write({"customer": "c8"})[0] == b"c8"
