from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.event_time import EventTime
from forebay.errors import MalformedRecord, SettingError

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        ("iso8601", "1970-01-01T00:00:01Z", 1000),
        ("iso8601", "1970-01-01 00:00:01.5", 1500),
        ("iso8601", "1970-01-01T00:00:00.123456789Z", 123),
        ("iso8601", "1970-01-01T01:00+0100", 0),
        ("iso8601", "1970-01-01T00:00:00-01", HOUR_MS),
        ("iso8601", "1970-01-02", 24 * HOUR_MS),
        ("iso8601", "1969-12-31T23:59:59.999Z", -1),
        ("unix_s", 1.5, 1500),
        ("unix_s", "2", 2000),
        ("unix_ms", 1_500_000_000_123, 1_500_000_000_123),
        ("unix_us", 1_500_000_000_123_999, 1_500_000_000_123),
        ("%d/%b/%Y:%H:%M:%S %z", "01/Jan/1970:01:00:00 +0100", 0),
        ("%Y%m%d", "19700102", 24 * HOUR_MS),
    ],
)
def test_forms(form: str, value: object, expected: int) -> None:
    assert EventTime("t", form).of({"t": value}) == expected


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("iso8601", "yesterday"),
        ("iso8601", "2024-13-01"),
        ("iso8601", 1700000000),
        ("iso8601", None),
        ("iso8601", "2024-01-01T00:00:00+99:99"),
        ("unix_s", True),
        ("unix_s", "soon"),
        ("unix_s", []),
        ("unix_s", 10**300),
        ("unix_ms", 10**18),
        ("%Y", 2024),
        ("%Y", "24 h"),
    ],
)
def test_a_value_that_is_no_time_is_malformed(form: str, value: object) -> None:
    with pytest.raises(MalformedRecord, match="'t'"):
        EventTime("t", form).of({"t": value})


def test_nested_and_missing_fields() -> None:
    assert EventTime("meta.at", "unix_ms").of({"meta": {"at": 7}}) == 7
    for fields in ({}, {"meta": None}, {"meta": {}}, {"meta.at": 7}):
        with pytest.raises(MalformedRecord, match="missing"):
            EventTime("meta.at", "unix_ms").of(fields)


def test_an_unknown_format_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match="epoch"):
        EventTime("t", "epoch")


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
)
def test_what_isoformat_writes_is_read(moment: datetime, offset_minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    expected = (aware - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    assert EventTime("t").of({"t": aware.isoformat()}) == expected


@given(
    st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()),
    st.sampled_from(["iso8601", "unix_s", "unix_ms", "unix_us", "%Y-%m-%d %H"]),
)
def test_nothing_else_is_raised(value: object, form: str) -> None:
    with suppress(MalformedRecord):
        assert isinstance(EventTime("t", form).of({"t": value}), int)
