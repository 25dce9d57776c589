from __future__ import annotations

import json
import pickle
import re
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import Draft4Validator, Draft202012Validator
from tests.attacks.bounds import within_bounds

from forebay.engine.answer import MAX_ANSWER_CHARS, AnswerCheck, linear, search
from forebay.errors import AnswerCut, InvalidAnswer, SettingError

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["mood"],
    "additionalProperties": False,
}
TREE = {"type": "array", "items": {"$ref": "#"}}


def test_answer_that_fits_the_schema_is_parsed() -> None:
    assert AnswerCheck(SCHEMA)(' \n{"mood": "good", "tags": ["a"]}\t') == {"mood": "good", "tags": ["a"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('```json\n{"mood": "good"}\n```', "not JSON"),
        ('{"mood": "good"} and more', "not JSON"),
        ('{"mood": NaN}', "not JSON"),
        ('"\\ud800"', "not JSON"),
        ("[" * 2000, "not JSON"),
        ('{"mood": 1%s}' % ("0" * 1000), r"field 'mood' is 1000"),
        ("[" * 100 + "]" * 100, "nested deeper than 64"),
        ("[" * 1000 + "9" * 20 + "]" * 1000, "depth limit exceeded"),
        ("{}", r"at \$: 'mood' is a required"),
        ('{"mood": "so-so"}', r"at \$\.mood: 'so-so' is not one of"),
        ('{"mood": "good", "tags": ["a", 1]}', r"at \$\.tags\[1\]: 1 is not of type 'string'"),
        ('{"mood": "good", "x": 1}', "Additional properties"),
        (" " * (MAX_ANSWER_CHARS + 1), "more than 1048576"),
        (json.dumps({"mood": "x" * 10_000}), r"\$\.mood"),
        (json.dumps({"mood": "good", "x" * 10_000: 1}), "Additional"),
    ],
)
def test_answer_that_breaks_the_schema_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(InvalidAnswer, match=problem) as caught:
        AnswerCheck(SCHEMA)(text)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_numbers_in_answers_keep_their_digits() -> None:
    check = AnswerCheck({"type": "array", "items": {"type": "number"}})
    assert str(check("[18446744073709551617, 0.1000000000000000055]")) == (
        "[18446744073709551617, 0.1000000000000000055]"
    )


def test_cut_answer_is_marked() -> None:
    with pytest.raises(AnswerCut, match="cut at max_tokens before its JSON was complete; raise sampling"):
        AnswerCheck(SCHEMA)('{"mood": "go', finish_reason="length")


@pytest.mark.parametrize("text", ["12", "-1.5"])
def test_number_at_the_end_of_a_cut_answer_is_cut(text: str) -> None:
    check = AnswerCheck({})
    assert check(text, finish_reason="stop") == float(text)
    with pytest.raises(AnswerCut):
        check(text, finish_reason="length")
    for whole in ("[12]", "true", '"12"', "null"):
        check(whole, finish_reason="length")


def test_recursive_schema_is_supported() -> None:
    check = AnswerCheck(TREE)
    assert check("[[], [[]]]") == [[], [[]]]
    with pytest.raises(InvalidAnswer):
        check("[[1]]")


def test_check_can_be_pickled_with_a_read_only_schema() -> None:
    check = pickle.loads(
        pickle.dumps(AnswerCheck(MappingProxyType({"properties": MappingProxyType({"a": False})})))
    )
    with pytest.raises(InvalidAnswer):
        check('{"a": 1}')


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "strng"}, r"answer\.schema\.type is not a JSON schema: 'strng'"),
        ({"properties": {"a": {"pattern": "["}}}, r"answer\.schema\.properties\.a\.pattern"),
        ({"$ref": "https://example.org/schema.json"}, r"answer\.schema\.\$ref .*only references within"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, r"answer\.schema\.properties\.a\.\$ref"),
        ({"anyOf": [{"$dynamicRef": "other.json"}]}, r"answer\.schema\.anyOf\[0\]\.\$dynamicRef"),
        ({"$ref": "#/$defs/missing"}, "is not in the schema"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"$schema": {}}, r"answer\.schema\.\$schema"),
        ({"$schema": "https://example.org/mine"}, r"answer\.schema\.\$schema is 'https://example"),
    ],
)
def test_invalid_schema_fails_the_start(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        AnswerCheck(schema, where="answer.schema")


def test_too_deep_schema_fails_the_start() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(SettingError, match="nested deeper"):
        AnswerCheck(schema)


def test_older_json_schema_drafts_are_supported() -> None:
    check = AnswerCheck(
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    )
    with pytest.raises(InvalidAnswer):
        check("1")


@given(st.text())
def test_any_text_is_a_value_or_an_invalid_answer(text: str) -> None:
    try:
        value = AnswerCheck({})(text)
    except InvalidAnswer:
        return
    assert json.dumps(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values)
def test_any_json_value_is_returned_unchanged(value: object) -> None:
    assert AnswerCheck({})(json.dumps(value)) == value


@given(
    st.dictionaries(
        st.sampled_from(["type", "properties", "items", "$ref", "enum", "minimum", "$schema"]), values
    )
)
def test_any_schema_is_accepted_or_rejected(schema: dict[str, Any]) -> None:
    try:
        check = AnswerCheck(schema)
    except SettingError:
        return
    try:
        check("[]")
    except InvalidAnswer:
        return


SLOW, LONG = "^(x+)+$", "x" * 28 + "!"
"""A backtracking expression takes more than 5 s for these."""


@pytest.mark.heavy
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
def test_pattern_check_time_is_bounded(schema: dict[str, Any], answer: dict[str, Any]) -> None:
    check = AnswerCheck(schema)
    with within_bounds(), pytest.raises(InvalidAnswer, match="breaks the schema"):
        check(orjson.dumps(answer).decode())


def level(sign: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"left": {"$ref": "#"}, "op": {"const": sign}}}


FORMULA = {"oneOf": [level("+"), level("-"), {"type": "number"}]}
"""At each level of a formula, two alternatives check the levels below."""


@pytest.mark.heavy
@pytest.mark.parametrize("leaf", ["1", json.dumps("x" * 100_000)])
def test_references_are_followed_once_for_each_value(leaf: str) -> None:
    check = AnswerCheck(FORMULA)
    text = '{"op":"-","left":' * 30 + leaf + "}" * 30
    with within_bounds():
        if leaf == "1":
            assert check(text)
        else:
            with pytest.raises(InvalidAnswer, match="breaks the schema at"):
                check(text)
    assert check('{"op":"-","left":1}'), "an earlier check has no effect"


def test_path_of_an_error_stays_if_it_is_found_again() -> None:
    node = {"properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {"$defs": {"node": node}, "if": {"$ref": "#/$defs/node"}, "else": {"$ref": "#/$defs/node"}}
    with pytest.raises(InvalidAnswer, match=r"at \$\.next\.next\.x: 'a' is not of type 'number'"):
        AnswerCheck(schema)('{"next": {"next": {"x": "a"}}}')


@pytest.mark.heavy
def test_schema_whose_references_multiply_is_supported() -> None:
    names = [f"level{number}" for number in range(30)]
    doubled = {
        name: {"allOf": [{"$ref": f"#/$defs/{below}"}, {"$ref": f"#/$defs/{below}"}]}
        for name, below in pairwise(names)
    }
    schema = {"$defs": {**doubled, names[-1]: {"type": "null"}}, "$ref": f"#/$defs/{names[0]}"}
    with within_bounds():
        check = AnswerCheck(schema)
        assert check("null") is None
        with pytest.raises(InvalidAnswer, match="1 is not of type 'null'"):
            check("1")


@pytest.mark.heavy
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
        ({"items": {"$dynamicRef": "#"}}, r"items has \$dynamicRef.*write \$ref"),
        ({"properties": {"default": {"pattern": "(?=x)"}}}, r"properties\.default\.pattern"),
        (
            {"$defs": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
            r"\$defs\.a has a \$schema",
        ),
    ],
)
def test_patterns_without_linear_time_are_rejected(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        AnswerCheck(schema)


def test_names_and_values_like_keywords_are_unchanged() -> None:
    value = {"pattern": "(", "$schema": "a"}
    names = {"pattern": {"type": "string"}, "patternProperties": {}, "$schema": {}, "b": {"const": value}}
    answer = {"pattern": "(", "b": value}
    assert AnswerCheck({"properties": names})(orjson.dumps(answer).decode()) == answer


def test_pattern_behind_a_reference_is_checked() -> None:
    check = AnswerCheck({"examples": [{"pattern": "(?=x)"}], "properties": {"a": {"$ref": "#/examples/0"}}})
    with pytest.raises(InvalidAnswer, match="cannot be checked"):
        check('{"a": "x"}')


PATTERNS = st.sampled_from(("^a", "b$", "^a+b?$", "[ab]{2}", "c|^$", "a.b", r"\d"))
TEXTS = st.text("abc1 \n", max_size=6).filter(lambda text: not text.endswith("\n"))


@given(PATTERNS, TEXTS)
def test_plain_patterns_match_as_in_python(pattern: str, text: str) -> None:
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
def test_characters_may_be_given_by_code_point(pattern: str, text: str, found: bool) -> None:
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
def test_schemas_validate_as_in_the_library(dialect: Any, schema: dict[str, Any], answer: Any) -> None:
    assert linear(dialect)(schema).is_valid(answer) == dialect(schema).is_valid(answer)
