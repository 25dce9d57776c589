from __future__ import annotations

import json
import pickle
import tracemalloc
from decimal import Decimal

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.attacks.bounds import within_bounds

from forebay.json_numbers import (
    TOO_DEEP,
    ExactFloat,
    NumberRefused,
    check_numbers,
    deeper_than,
    dump_json,
    read_json,
)

DOUBLES = [
    *("-0.0", "1.10", "1E5", "5e-324", "0e-400", "1.7976931348623157e308"),
    *("52.520006599999995", "0.30000000000000004441", "0.1000000000000000055511151231257827"),
    *("100000000000000000000.0", "1e22", "9007199254740992.0", "5.960464477539063e-08"),
]
EXACT = [
    *("18446744073709551616", "-9223372036854775809", "1" + "0" * 20, "9" * 1000),
    *("1e400", "-1e400", "1e-400", "1e999999999999999999999", "1e-99999999"),
    *("0.1000000000000000055", "3.6666666666666667", "9007199254740993.0", "1234.567890123456789012"),
    *("1.23456789012345e-320", "9007199254740993e0", "0." + "1" * 900),
]


@pytest.mark.parametrize("literal", DOUBLES)
def test_numbers_that_fit_a_double_are_floats(literal: str) -> None:
    value = read_json(b'{"n": [%s]}' % literal.encode())["n"][0]
    assert type(value) is float
    assert value == float(literal)


@pytest.mark.parametrize("literal", EXACT)
def test_other_numbers_print_as_they_were_written(literal: str) -> None:
    data = b'{"a":{"n":[1,%s]},"z":"x"}' % literal.encode()
    value = read_json(data)
    number = value["a"]["n"][1]
    assert (str(number), f"{number}") == (literal, literal)
    assert number == json.loads(literal)
    assert str(pickle.loads(pickle.dumps(number))) == literal
    assert dump_json(value) == data
    assert json.loads(dump_json(value, option=orjson.OPT_INDENT_2)) == value


@pytest.mark.parametrize("literal", ["1" + "0" * 1000, "-" + "9" * 5000, "0." + "1" * 1000, "1" * 999 + "e5"])
def test_a_number_that_is_too_long_is_named(literal: str) -> None:
    with pytest.raises(NumberRefused, match=r"^field 'a\.n\[1\]' is ") as caught:
        read_json(b'{"a": {"n": [1, %s]}, "z": "x"}' % literal.encode())
    assert literal[:20] in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.heavy
def test_the_path_of_a_number_takes_no_more_memory_than_its_record() -> None:
    names = "a" * 200_000
    data = b'{"%s":{"%s":[%s]}}' % (names.encode(), names.encode(), b"1," * 200_000 + b"9" * 1001)
    tracemalloc.start()
    with pytest.raises(NumberRefused, match=r"^field 'a{59}\.a{59}\[200000\]' is 999"):
        read_json(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200 << 20


@pytest.mark.heavy
def test_texts_that_look_like_long_numbers_take_no_more_time() -> None:
    data = b'["' + (b"e" * 999 + b"x") * 16_000 + b'",1234567890123456789]'
    with within_bounds():
        assert read_json(data)[1] == 1234567890123456789


@given(st.integers() | st.integers(-(2**70), 2**70))
def test_an_integer_is_exact(number: int) -> None:
    assert read_json(str(number).encode()) == number
    assert dump_json([number]) == b"[%d]" % number


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_decimal_keeps_its_digits(number: Decimal) -> None:
    literal = str(number).replace("E+", "e")
    value = read_json(literal.encode())
    digits = len(number.normalize().as_tuple().digits)
    assert number in (Decimal(str(value)), Decimal(f"{value:.{digits - 1}e}"))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(17, 60))
def test_a_double_is_one_whatever_its_writer_prints(number: float, digits: int) -> None:
    for literal in (repr(number), f"{number:.17g}", f"{number:.{digits}e}"):
        value = read_json(literal.encode())
        assert type(value) in (int, float)
        assert float(value) == number


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_texts_with_digits_are_no_numbers(number: float, text: str) -> None:
    value = {"id": "12345678901234567890.1e400", "text": text, "n": number}
    assert read_json(orjson.dumps(value)) == value


@pytest.mark.parametrize("data", [b'{"a": 1e400', b'{"a": 1e400, "b": NaN}', b"[" * 900 + b"1e400"])
def test_invalid_json_is_rejected_as_such(data: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        read_json(data)


@pytest.mark.parametrize("number", [b"9" * 20, b"1e400", b"1"], ids=["integer", "decimal", "short"])
def test_a_value_that_is_nested_too_deep_is_refused_as_such(number: bytes) -> None:
    levels = 1000 if len(number) > 1 else 5000
    with pytest.raises(orjson.JSONDecodeError, match=TOO_DEEP):
        read_json(b"[" * levels + number + b"]" * levels)


@pytest.mark.parametrize("number", [1 << 4000, float("nan"), float("-inf")], ids=["long", "nan", "inf"])
def test_a_number_that_json_does_not_have_is_named(number: float) -> None:
    with pytest.raises(NumberRefused, match=r"field 'a\[0\]'"):
        check_numbers({"a": (number,), "b": [number]})


def test_self_containing_value_is_an_error() -> None:
    holds: dict[str, object] = {"n": 2**64, "flag": True, "much": ExactFloat("1e400")}
    holds |= {"a": holds, "b": [holds]}
    check_numbers(holds)


def test_other_values_are_written_as_given() -> None:
    value = {"set": {1}, "n": [2**64, ExactFloat("1e400")]}
    assert dump_json(value, list) == b'{"set":[1],"n":[18446744073709551616,1e400]}'
    with pytest.raises(TypeError, match="not JSON serializable"):
        dump_json(value)


@pytest.mark.parametrize("text", ["", "1e", "nan", "0x1", "1_0", "1" * 1001])
def test_an_exact_float_is_a_number_of_json(text: str) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        ExactFloat(text)


@pytest.mark.parametrize("depth", [150, 900, 1010])
@pytest.mark.parametrize("number", [b"12345678901234567890", b"1e400", b"1"])
def test_deep_nesting_with_a_long_number_does_not_end_the_process(depth: int, number: bytes) -> None:
    data = b"[" * depth + number + b"]" * depth
    try:
        read_json(data)
    except orjson.JSONDecodeError:
        assert depth > 500


def test_integers_of_other_objects_are_written_with_all_digits() -> None:
    class Wrapped:
        def __init__(self, value: int) -> None:
            self.value = value

    written = dump_json([Wrapped(2**70)], lambda item: {"value": item.value})
    assert written == b'[{"value":1180591620717411303424}]'


nested = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@example([{"a": []}], 2)
@example([{"a": 1}], 2)
@given(nested, st.integers(1, 6))
def test_depth_counts_lists_and_objects(value: object, levels: int) -> None:
    assert deeper_than(value, levels) == (depth(value) > levels)
