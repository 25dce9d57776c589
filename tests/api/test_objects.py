from __future__ import annotations

from typing import Any

import pytest

from forebay.api.files import JsonLine
from forebay.api.objects import failing_as, function_of, shown
from forebay.codec import decode, encode
from forebay.errors import FunctionFailed
from forebay.flink.job import root_cause
from forebay.records import DeadLetter, Event, Result, Usage

RESULT = Result("1", "ann", {}, "yes", Usage(), 1, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (RESULT, "the result with id '1' and key 'ann'"),
        (DeadLetter(b"x", "late", "too late", position="t/0@1"), "the dead letter with id 't/0@1'"),
        (Event(b"x", {}, position="a@3"), "the event with position 'a@3'"),
        (Event(b"x", {"n": 1}), "the event Event("),
        ({"n": 1}, "the dict {'n': 1}"),
        (5, "the int 5"),
    ],
)
def test_short_description_of_an_element(item: Any, words: str) -> None:
    assert shown(item).startswith(words)


def test_description_of_any_element_is_short() -> None:
    assert len(shown({"text": "x" * 100_000})) < 200
    assert len(shown(Event(b"x", {}, position="p" * 100_000))) < 200


def test_failing_function_is_found_in_flinks_cause() -> None:
    with pytest.raises(FunctionFailed) as raised, failing_as("write_kafka 'teams'", "value", RESULT):
        raise KeyError("a\nb")
    told = f"pemja.core.PythonException: <class 'forebay.errors.FunctionFailed'>: {raised.value}\n\tat a.b(c)"
    cause = root_cause(f"JobException: Recovery is suppressed\n\tat d.e(f)\nCaused by: {told}")
    assert function_of(cause) == "write_kafka 'teams': value"
    assert function_of("TimeoutException: it failed for the first time") is None


def test_json_sink_error_names_its_sink() -> None:
    line = JsonLine("write_jsonl 'out'", decode)
    assert '"id":"1"' in line(encode(RESULT))
    with pytest.raises(FunctionFailed, match=r"^write_jsonl 'out': making JSON failed for the set \{1\}: T"):
        JsonLine("write_jsonl 'out'")({1})
