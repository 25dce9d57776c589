from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft4Validator, Draft202012Validator
from tests.attacks.bounds import within_bounds

from forebay.engine.answer import AnswerCheck
from forebay.engine.linear_schema import linear, search
from forebay.errors import InvalidAnswer, SettingError

SLOW, LONG = "^(x+)+$", "x" * 28 + "!"
"""A backtracking expression takes more than 5 s for these."""


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"properties": {"a": {"pattern": SLOW}}}, {"a": LONG}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": False}, {LONG: 1}),
        ({"patternProperties": {SLOW: {}}, "additionalProperties": {"type": "string"}}, {LONG: 1}),
        ({"propertyNames": {"pattern": SLOW}}, {LONG: 1}),
        (
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "properties": {"a": {"pattern": SLOW}, "b": {"$ref": "#"}},
            },
            {"b": {"b": {"a": LONG}}},
        ),
    ],
)
def test_no_answer_keeps_a_pattern_busy(schema: dict[str, Any], answer: dict[str, Any]) -> None:
    check = AnswerCheck(schema)
    with within_bounds(), pytest.raises(InvalidAnswer, match="breaks the schema"):
        check(orjson.dumps(answer).decode())


def test_many_items_that_cannot_be_sorted_are_compared_by_their_hashes() -> None:
    check = AnswerCheck({"uniqueItems": True})
    answer = [{"a": number} for number in range(40_000)]
    with within_bounds():
        assert check(orjson.dumps(answer).decode()) == answer
        with pytest.raises(InvalidAnswer, match="non-unique"):
            check(orjson.dumps([*answer, {"a": 7.0}]).decode())


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": {"a": {"pattern": "(?=x)"}}},
            r"output\.schema\.properties\.a\.pattern.*without look-around.*: invalid perl operator: \(\?=$",
        ),
        ({"pattern": "^x{1001}$"}, r"without counts above 1000: invalid repetition size: \{1001\}$"),
        # One character in two halves.
        ({"pattern": r"\ud83d\ude00"}, r"invalid escape sequence: \\u$"),
        ({"anyOf": [{"pattern": r"(a)\1"}]}, r"output\.schema\.anyOf\[0\]\.pattern"),
        ({"patternProperties": {"(?!x)": {}}}, r"output\.schema\.patternProperties"),
        ({"unevaluatedProperties": False}, "schema has unevaluatedProperties.*write additionalProperties"),
        ({"anyOf": [{"unevaluatedItems": False}]}, r"anyOf\[0\] has unevaluatedItems.*write items"),
        ({"properties": {"default": {"pattern": "(?=x)"}}}, r"properties\.default\.pattern"),
        (
            {"$defs": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
            r"\$defs\.a has a \$schema",
        ),
    ],
)
def test_what_cannot_be_checked_in_linear_time_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        AnswerCheck(schema)


def test_names_and_values_that_look_like_keywords_are_left_alone() -> None:
    value = {"pattern": "(", "$schema": "a"}
    names = {"pattern": {"type": "string"}, "patternProperties": {}, "$schema": {}, "b": {"const": value}}
    answer = {"pattern": "(", "b": value}
    assert AnswerCheck({"properties": names})(orjson.dumps(answer).decode()) == answer


def test_a_pattern_within_a_value_that_is_referred_to_refuses_the_answer() -> None:
    check = AnswerCheck({"examples": [{"pattern": "(?=x)"}], "properties": {"a": {"$ref": "#/examples/0"}}})
    with pytest.raises(InvalidAnswer, match="cannot be checked"):
        check('{"a": "x"}')


PATTERNS = st.sampled_from(("^a", "b$", "^a+b?$", "[ab]{2}", "c|^$", "a.b", r"\d"))
TEXTS = st.text("abc1 \n", max_size=6).filter(lambda text: not text.endswith("\n"))


@given(PATTERNS, TEXTS)
def test_plain_patterns_mean_what_they_do_to_python(pattern: str, text: str) -> None:
    assert search(pattern, text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\u0041\u00e4$", "A\u00e4", True),
        (r"^[\u0041-\u0043]+$", "ABC", True),
        (r"^\u2028$", "\u2028", True),
        # A backslash, and not what follows it.
        (r"^\\u0041$", r"\u0041", True),
        (r"^\\u0041$", "A", False),
        (r"^\\\u0041$", "\\A", True),
    ],
)
def test_characters_may_be_given_by_their_numbers(pattern: str, text: str, found: bool) -> None:
    assert search(pattern, text) is found is (re.search(pattern, text) is not None)


PARTS = st.sampled_from((True, False, {"type": "integer"}, {"pattern": "^a"}, {"minLength": 2}))
SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(TEXTS, PARTS, max_size=2),
        "patternProperties": st.dictionaries(PATTERNS, PARTS, max_size=2),
        "additionalProperties": PARTS,
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
    },
)
PLAIN = st.sampled_from((None, True, False, 0, 1, 0.0, 1.0, "a", "1"))
ITEMS = st.lists(st.recursive(PLAIN, lambda each: st.lists(each) | st.dictionaries(st.just("a"), each)))
ANSWERS = st.dictionaries(TEXTS, st.one_of(st.integers(), TEXTS), max_size=4) | TEXTS | ITEMS


@given(SCHEMAS, ANSWERS)
@pytest.mark.parametrize("dialect", [Draft202012Validator, Draft4Validator])
def test_schemas_mean_what_they_do_to_the_library(dialect: Any, schema: dict[str, Any], answer: Any) -> None:
    assert linear(dialect)(schema).is_valid(answer) == dialect(schema).is_valid(answer)
