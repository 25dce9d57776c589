"""Numbers in JSON: each keeps its digits from the source to the sink, or is refused by the name of its
field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.corpus.case import JSON_LINES, Case, Refused, cases, check
from tests.corpus.sources import everywhere, from_kafka
from tests.corpus.way import check_way, keyed, result_of

from forebay.connectors.formats import result_json
from forebay.json_numbers import MAX_CHARS, ExactFloat
from forebay.records import KeyedEvent

KEPT: dict[str, Any] = {
    "0": 0,
    "-0": 0,
    "-0.0": -0.0,
    "-0e5": -0.0,
    "0e999999999": 0.0,
    "1.10": 1.1,
    "1E5": 100000.0,
    "1e-7": 1e-7,
    "9007199254740992": 2**53,
    "9007199254740993": 2**53 + 1,
    "-9007199254740993": -(2**53) - 1,
    "9007199254740993.0": ExactFloat("9007199254740993.0"),
    "9223372036854775807": 2**63 - 1,
    "9223372036854775808": 2**63,
    "-9223372036854775808": -(2**63),
    "-9223372036854775809": -(2**63) - 1,
    "18446744073709551615": 2**64 - 1,
    "18446744073709551616": 2**64,
    "100000000000000000000000000001": 10**29 + 1,
    "100000000000000000000.0": 1e20,
    "0.1": 0.1,
    "0.1000000000000000055511151231257827": 0.1,
    "0.123456789012345678901234567891": ExactFloat("0.123456789012345678901234567891"),
    "3.14159265358979323846": ExactFloat("3.14159265358979323846"),
    "0.30000000000000004": 0.30000000000000004,
    "1.7976931348623157e308": 1.7976931348623157e308,
    "1.7976931348623159e308": ExactFloat("1.7976931348623159e308"),
    "1e400": ExactFloat("1e400"),
    "-1E+400": ExactFloat("-1E+400"),
    "1e-400": ExactFloat("1e-400"),
    "5e-324": 5e-324,
    "2e-324": ExactFloat("2e-324"),
    "1e999999999": ExactFloat("1e999999999"),
    "1e-99999999999999999999": ExactFloat("1e-99999999999999999999"),
    '"1e400"': "1e400",
    '"9223372036854775808"': "9223372036854775808",
    '"NaN"': "NaN",
    "true": True,
    "null": None,
    "[18446744073709551616, 1e400, 1]": [2**64, ExactFloat("1e400"), 1],
    '{"1e400": 18446744073709551616}': {"1e400": 2**64},
    "9" * MAX_CHARS: 10**MAX_CHARS - 1,
    "0." + "1" * (MAX_CHARS - 2): ExactFloat("0." + "1" * (MAX_CHARS - 2)),
}
NOT_JSON = (
    *("NaN", "Infinity", "-Infinity", "nan", "+1", ".5", "1.", "01", "-01", "0x10", "0o17", "1_000", "1e"),
    *("1e+", "--1", "-", "١", "１", "1,5", "1 000", "1e400.5", "∞", "1n", "1L", "1f", "True", "None"),
    *("undefined", "1e5e5"),
)
TOO_LONG: dict[str, str] = {
    "9" * (MAX_CHARS + 1): "field 'n' is 9999",
    "9" * 10_000: "the limit for a number is 1000 characters",
    "-" + "9" * MAX_CHARS: "field 'n' is -9999",
    "0." + "1" * 10_000: "field 'n' is 0.1111",
    "1e" + "9" * 1000: "field 'n' is 1e9999",
    "[0, " + "9" * 2000 + "]": "field 'n[1]'",
    '{"deep": [{"er": ' + "9" * 2000 + "}]}": "field 'n.deep[0].er'",
    '{"b\\u0000c": ' + "9" * 2000 + "}": "field 'n.b\\x00c'",
}


def named(literal: str) -> str:
    return literal if len(literal) < 40 else f"{literal[:30]}… of {len(literal)}"


def case(literal: str, expected: Any) -> Case:
    return Case(named(literal), f'{{"n": {literal}}}'.encode(), expected)


CASES = (
    *(case(literal, {"n": value}) for literal, value in KEPT.items()),
    *(case(literal, Refused("not JSON")) for literal in NOT_JSON),
    *(case(literal, Refused(words)) for literal, words in TOO_LONG.items()),
)


@pytest.mark.heavy
@cases(CASES)
def test_number_is_kept_or_rejected(case: Case, tmp_path: Path) -> None:
    for source, record in everywhere(case.raw, case.form, tmp_path):
        check(record, case.expected, source)
        check_way(record, case.form, source)


@cases(
    [
        case(literal, written)
        for literal, written in {
            **{literal: literal for literal, value in KEPT.items() if isinstance(value, ExactFloat)},
            **{literal: literal for literal, value in KEPT.items() if type(value) is int and literal != "-0"},
            "-0.0": "-0.0",
            "0.1": "0.1",
        }.items()
    ]
)
def test_number_is_written_as_read(case: Any) -> None:
    item = keyed(from_kafka(case.raw, case.form))
    assert isinstance(item, KeyedEvent)
    assert f'"fields":{{"n":{case.expected},' in result_json(result_of(item))


def test_ids_that_differ_in_the_last_digit_stay_different() -> None:
    numbers = [2**64 + n for n in range(3)]
    records = [from_kafka(b'{"n": %d}' % number, JSON_LINES) for number in numbers]
    assert [record.fields["n"] for record in records] == numbers  # type: ignore[union-attr]
