"""Numbers, units and times in words."""

from __future__ import annotations

import pytest

from forebay.pages.units import Unit, moment, shown

MS = Unit("ms", 1000.0)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0, None, "0"),
        (1234.5, None, "1,234"),
        (12.345, None, "12.3"),
        (0.4167, Unit("s"), "0.417 s"),
        (0.2, MS, "200 ms"),
        (0.00002, MS, "0.02 ms"),
        (0.0000002, MS, "0"),
        (0.5, Unit("%", 100.0), "50 %"),
        (float("inf"), None, "–"),
        (float("nan"), None, "–"),
        (-0.25, None, "-0.25"),
        (99.99, None, "100"),
    ],
)
def test_numbers_have_three_digits_and_their_unit(value: float, unit: Unit | None, words: str) -> None:
    assert shown(value, unit).removesuffix(" ms") == words.removesuffix(" ms")


def test_times_are_in_utc() -> None:
    assert moment(1_503_793_148_000) == "2017-08-27 00:19:08"
    assert moment(1_503_793_148_000, "%Y-%m-%d %H:%M") == "2017-08-27 00:19"
    assert moment(None) == moment(10**20) == "–"
