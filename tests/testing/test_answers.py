import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.answer import AnswerCheck
from forebay.records import Message, Request
from forebay.testing.answers import answer_to, echo, request_text


def test_the_echo_is_a_function_of_the_prompt() -> None:
    assert echo("hello") == "echo:aaf4c61ddcc5"
    assert echo("hello") != echo("hello ")


def test_inputs_that_determine_an_answer() -> None:
    assert request_text(Request("r", "m", prompt="a")) == "a"
    assert request_text(Request("r", "m", messages=(Message("system", "a"), Message("user", "b")))) == "a\nb"


def test_answers_are_cut_and_filled() -> None:
    assert answer_to("hello", None, max_tokens=16) == ("echo:aaf4c61ddcc5", "stop")
    assert answer_to("hello", None, max_tokens=2) == ("echo:aaf", "length")
    assert answer_to("hello", None, max_tokens=6, ignore_eos=True) == ("echo:aaf4c61ddcc5.......", "length")
    assert answer_to("hello", {"type": "string"}, max_tokens=1) == ('"ech', "length")


SCHEMAS: list[dict[str, Any]] = [
    {"const": [1]},
    {"enum": ["a", "b", "c"]},
    {"type": "string"},
    {"type": "string", "minLength": 40},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "integer"},
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3},
    {"type": "integer", "maximum": -5},
    {"type": "integer", "minimum": 0.5},
    {"type": "number"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1},
    {"type": "number", "maximum": 3},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3},
    {"type": "array", "maxItems": 0},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"$ref": "#/$defs/mood", "$defs": {"mood": {"enum": ["good", "bad"]}}},
    {
        "type": "object",
        "properties": {
            "sentiment": {"enum": ["positive", "neutral", "negative"]},
            "topics": {"type": "array", "items": {"type": "string"}},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "inner": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
        },
        "required": ["sentiment", "topics", "score", "inner"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@given(text=st.text())
def test_an_answer_keeps_its_schema_and_is_always_the_same(schema: dict[str, Any], text: str) -> None:
    answer, reason = answer_to(text, schema, max_tokens=1000)
    AnswerCheck(schema)(answer)
    assert reason == "stop"
    assert answer_to(text, schema, max_tokens=1000)[0] == answer


def test_prompts_choose_among_alternatives() -> None:
    answers = {answer_to(str(i), {"enum": ["a", "b", "c"]}, max_tokens=9)[0] for i in range(50)}
    assert answers == {'"a"', '"b"', '"c"'}
