from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.event_time import EventTime
from forebay.errors import MalformedRecord, SettingError
from forebay.flink.event_time import is_suspect


@pytest.fixture(params=["UTC", "EST5EDT"])
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """A machine in this time zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
JAVA = "%a %b %d %H:%M:%S %Z %Y"


@pytest.mark.parametrize(
    ("form", "zone", "value", "expected"),
    [
        ("iso8601", BERLIN, "1970-01-01T01:00:00", "1970-01-01T00:00:00Z"),
        ("iso8601", BERLIN, "2026-07-01T12:00", "2026-07-01T10:00:00Z"),
        ("iso8601", BERLIN, "2026-07-01", "2026-06-30T22:00:00Z"),
        ("iso8601", BERLIN, "2026-07-01T12:00Z", "2026-07-01T12:00:00Z"),
        ("iso8601", BERLIN, "2026-10-25T02:30", "2026-10-25T00:30:00Z"),
        ("%d.%m.%Y %H:%M", BERLIN, "01.01.2026 00:30", "2025-12-31T23:30:00Z"),
        ("%d.%m.%Y %H:%M %z", BERLIN, "01.01.2026 00:30 +0000", "2026-01-01T00:30:00Z"),
        ("%H:%M %Z, %Y-%m-%d", "UTC", "12:00 UTC, 2026-01-01", "2026-01-01T12:00:00Z"),
        ("%H:%M %Z, %Y-%m-%d", NEW_YORK, "12:00 gmt, 2026-01-01", "2026-01-01T12:00:00Z"),
        (JAVA, NEW_YORK, "Sat Jan 31 12:00:00 EST 2026", "2026-01-31T17:00:00Z"),
        (JAVA, NEW_YORK, "Wed Jul 01 12:00:00 EDT 2026", "2026-07-01T16:00:00Z"),
        (JAVA, NEW_YORK, "Sun Nov 01 01:30:00 EDT 2026", "2026-11-01T05:30:00Z"),
        (JAVA, NEW_YORK, "Sun Nov 01 01:30:00 EST 2026", "2026-11-01T06:30:00Z"),
        ("%Y-%m-%d %%Z", BERLIN, "2026-01-01 %Z", "2025-12-31T23:00:00Z"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_time_without_a_zone_has_the_sources_zone(form: str, zone: str, value: str, expected: str) -> None:
    assert EventTime("t", form, zone).of({"t": value}) == EventTime("t").of({"t": expected})


@pytest.mark.parametrize(
    ("zone", "value"),
    [
        ("UTC", "Sat Jan 31 12:00:00 EST 2026"),
        (BERLIN, "Sat Jan 31 12:00:00 EST 2026"),
        (NEW_YORK, "Sat Jan 31 12:00:00 EDT 2026"),
        (NEW_YORK, "Sat Jan 31 12:00:00 CST 2026"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_unknown_zone_name_is_rejected_on_every_machine(zone: str, value: str) -> None:
    name = value[20:23]
    with pytest.raises(MalformedRecord, match=rf"'t': '{name}' is not a name of the time zone {zone}"):
        EventTime("t", JAVA, zone).of({"t": value})


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "EST8", "a\0b"])
def test_an_unknown_time_zone_is_a_setting_error(zone: str) -> None:
    with pytest.raises(SettingError, match="such as Europe/Berlin"):
        EventTime("t", "iso8601", zone)


@pytest.mark.parametrize(
    ("form", "value", "hint"),
    [
        ("unix_s", 1_700_000_000_000, "; try time_format: unix_ms"),
        ("unix_s", 1_700_000_000_000_000, "; try time_format: unix_us"),
        ("unix_ms", "1700000000000000", "; try time_format: unix_us"),
        ("unix_ms", 10**18, "; try time_format: unix_ns"),
        ("unix_ns", 10**22, "10"),
        ("unix_ms", 10**400, "10"),
        ("unix_us", -(10**999), "-10"),
    ],
)
def test_a_number_of_a_finer_unit_is_recognised(form: str, value: object, hint: str) -> None:
    with pytest.raises(MalformedRecord, match=f"outside years 1 to 9999: .*{hint}"):
        EventTime("t", form).of({"t": value})


@pytest.mark.parametrize(
    ("form", "value", "suspect"),
    [
        ("unix_ms", 1_700_000_000, True),
        ("unix_us", 1_700_000_000_000, True),
        ("unix_s", 0, True),
        ("%b %d %H:%M:%S", "Jan 31 12:00:00", True),
        ("iso8601", "1970-12-31T23:59:59", True),
        ("iso8601", "1971-01-01", False),
        ("iso8601", "1969-12-31", False),
        ("iso8601", "1901-01-01", False),
        ("iso8601", "1899-12-31", False),
        ("unix_ms", 1_700_000_000_000, False),
    ],
)
def test_times_of_1970_and_1900_are_suspect(form: str, value: object, suspect: bool) -> None:
    assert is_suspect(EventTime("t", form).of({"t": value})) == suspect


def test_nested_and_missing_fields() -> None:
    assert EventTime("meta.at", "unix_ms").of({"meta": {"at": 7}}) == 7
    for fields in ({}, {"meta": None}, {"meta": {}}, {"meta.at": 7}):
        with pytest.raises(MalformedRecord, match="missing"):
            EventTime("meta.at", "unix_ms").of(fields)


def test_an_unknown_format_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match="epoch"):
        EventTime("t", "epoch")


@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-14 * 60, 14 * 60)
)
def test_isoformat_output_is_read(moment: datetime, offset_minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    expected = (aware - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    assert EventTime("t").of({"t": aware.isoformat()}) == expected


@given(
    st.text() | st.integers() | st.floats() | st.none() | st.lists(st.text()),
    st.sampled_from(["iso8601", "unix_s", "unix_ms", "unix_us", "unix_ns", "%Y-%m-%d %H"]),
)
def test_only_the_documented_error_is_raised(value: object, form: str) -> None:
    with suppress(MalformedRecord):
        assert isinstance(EventTime("t", form).of({"t": value}), int)


@pytest.mark.parametrize(
    "form", ["iso8601", "unix_s", "unix_ms", "unix_us", "unix_ns", "%d/%m/%Y %H:%M:%S %Z"]
)
@given(time_ms=st.integers(0, 4_000_000_000_000))
def test_time_round_trip(form: str, time_ms: int) -> None:
    zone = EventTime("at", form, "America/New_York")
    coarse = 1 if form in {"iso8601", "unix_ms", "unix_us", "unix_ns"} else 1000
    written = zone.written(time_ms)
    assert zone.of({"at": written}) == time_ms // coarse * coarse
