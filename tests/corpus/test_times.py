"""Times of records: each is the millisecond that is meant, or the record is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.corpus.case import Case, Refused, at, cases, check
from tests.corpus.sources import everywhere
from tests.corpus.way import check_way

pytestmark = pytest.mark.heavy

YEAR_1, YEAR_9999 = -62_135_596_800_000, 253_402_300_799_999
NEW_YORK, BERLIN = "America/New_York", "Europe/Berlin"
NAMED = "%Y-%m-%d %H:%M %Z"
NOT_ISO = Refused("the time field 'at' is not iso8601")
OUTSIDE = Refused("outside years 1 to 9999")


def time(name: str, value: Any, expected: int | Refused, format: str = "iso8601", zone: str = "UTC") -> Case:
    """`value`: that of the field, or its bytes in JSON."""
    raw = b'{"at": %s}' % (value if isinstance(value, bytes) else orjson.dumps(value))
    form = at(format, zone)
    if isinstance(expected, Refused):
        return Case(name, raw, expected, form)
    return Case(name, raw, {"at": orjson.loads(raw)["at"]}, form, expected)


ISO = (
    time("date", "2026-03-01", 1_772_323_200_000),
    time("utc", "2026-03-01T10:00:00Z", 1_772_359_200_000),
    time("small letters", "2026-03-01t10:00:00z", 1_772_359_200_000),
    time("no seconds", "2026-03-01 10:00", 1_772_359_200_000),
    time("blanks around", "  2026-03-01T10:00:00Z ", 1_772_359_200_000),
    time("offset", "2026-03-01T10:00:00+05:30", 1_772_339_400_000),
    time("offset of hours", "2026-03-01T10:00:00-08", 1_772_388_000_000),
    time("offset without colon", "2026-03-01T10:00:00+0100", 1_772_355_600_000),
    time("milliseconds", "2026-03-01T10:00:00.001Z", 1_772_359_200_001),
    time("comma", "2026-03-01T10:00:00,5Z", 1_772_359_200_500),
    time("nanoseconds", "2026-03-01T10:00:00.123999999Z", 1_772_359_200_123),
    time("30 digits", "2026-03-01T10:00:00." + "9" * 30, 1_772_359_200_999),
    time("before 1970", "1969-12-31T23:59:59.999Z", -1),
    time("rounded down", "1969-12-31T23:59:59.9999Z", -1),
    time("1900", "1900-01-01", -2_208_988_800_000),
    time("1900 is no leap year", "1900-02-29", NOT_ISO),
    time("2000 is a leap year", "2000-02-29", 951_782_400_000),
    time("year 1", "0001-01-01T00:00:00Z", YEAR_1),
    time("before year 1", "0001-01-01T00:00:00+01:00", OUTSIDE),
    time("year 0", "0000-12-31", NOT_ISO),
    time("year 9999", "9999-12-31T23:59:59.999Z", YEAR_9999),
    time("after year 9999", "9999-12-31T23:59:59-01:00", OUTSIDE),
    time("year 10000", "10000-01-01", NOT_ISO),
    time("signed year", "+2026-03-01", NOT_ISO),
    time("negative year", "-0044-03-15", NOT_ISO),
    time("leap second", "2016-12-31T23:59:60Z", NOT_ISO),
    time("hour 24", "2026-03-01T24:00:00Z", NOT_ISO),
    time("hour 25", "2026-03-01T25:00", NOT_ISO),
    time("month 13", "2026-13-01", NOT_ISO),
    time("day 30 of February", "2026-02-30", NOT_ISO),
    time("two digits of a year", "26-03-01", NOT_ISO),
    time("slashes", "2026/03/01", NOT_ISO),
    time("week", "2026-W09-7", NOT_ISO),
    time("a named zone", "2026-03-01T10:00:00 EST", NOT_ISO),
    time("a zone in brackets", "2026-03-01T10:00:00+01:00[Europe/Berlin]", NOT_ISO),
    time("arabic digits", "٢٠٢٦-٠٣-٠١", 1_772_323_200_000),
    time("a day of an offset", "2026-03-01T10:00:00+24:00", NOT_ISO),
    time("a NUL", "2026-03-01\0", NOT_ISO),
    time("zero width", "2026-03-01\u200b", NOT_ISO),
    time("empty", "", NOT_ISO),
    time("now", "now", NOT_ISO),
    time("null", None, Refused("is null")),
    time("true", True, NOT_ISO),
    time("a number", 1_772_359_200, NOT_ISO),
    time("a list", ["2026-03-01"], NOT_ISO),
    time("an object", {"$date": "2026-03-01"}, NOT_ISO),
    time("10,000 letters", "2" * 10_000, NOT_ISO),
)
ZONES = (
    time("zone", "2026-03-01T10:00", 1_772_377_200_000, zone=NEW_YORK),
    time("an offset wins", "2026-03-01T10:00Z", 1_772_359_200_000, zone=NEW_YORK),
    time("gap", "2026-03-29T02:30", 1_774_747_800_000, zone=BERLIN),
    time("the first of two", "2026-10-25T02:30", 1_792_888_200_000, zone=BERLIN),
    time("the hour before", "2026-10-25T01:30", 1_792_884_600_000, zone=BERLIN),
    time("local time of 1900", "1880-01-01T00:00", -2_840_144_008_000, zone=BERLIN),
    time("EST", "2026-01-15 10:00 EST", 1_768_489_200_000, NAMED, NEW_YORK),
    time("EDT", "2026-07-15 10:00 EDT", 1_784_124_000_000, NAMED, NEW_YORK),
    time("EST is no name in Berlin", "2026-01-15 10:00 EST", Refused("'EST' is not a name"), NAMED, BERLIN),
    time("EST in summer", "2026-07-15 10:00 EST", Refused("at this time"), NAMED, NEW_YORK),
    time("the second of two by name", "2026-11-01 01:30 EST", 1_793_514_600_000, NAMED, NEW_YORK),
    time("the first of two by name", "2026-11-01 01:30 EDT", 1_793_511_000_000, NAMED, NEW_YORK),
    time("GMT", "2026-01-15 10:00 GMT", 1_768_471_200_000, NAMED, NEW_YORK),
    time("without its name", "2026-01-15 10:00 ", Refused("is not %Y"), NAMED, NEW_YORK),
    time("numbers of a pattern", "15.01.2026 10:00 +0100", 1_768_467_600_000, "%d.%m.%Y %H:%M %z"),
    time("no year is 1900", "Jan 15 10:00", -2_207_743_200_000, "%b %d %H:%M"),
    time("a pattern and a number", 20260115, Refused("is not %Y%m%d"), "%Y%m%d"),
    time("a pattern and more text", "20260115x", Refused("is not %Y%m%d"), "%Y%m%d"),
)
NOT_S, NOT_MS, NOT_US = (Refused(f"the time field 'at' is not unix_{unit}") for unit in ("s", "ms", "us"))
EPOCHS = (
    time("seconds", 1_772_359_200, 1_772_359_200_000, "unix_s"),
    time("seconds as text", "1772359200", 1_772_359_200_000, "unix_s"),
    time("seconds and a half", 1_772_359_200.5, 1_772_359_200_500, "unix_s"),
    time("seconds below 0", -0.0001, -1, "unix_s"),
    time("minus 0", b"-0.0", 0, "unix_s"),
    time("one second before 1970", -1, -1000, "unix_s"),
    time("milliseconds as s", 1_772_359_200_000, Refused("try time_format: unix_ms"), "unix_s"),
    time("us as s", 1_772_359_200_000_000, Refused("try time_format: unix_us"), "unix_s"),
    time("s as ms are in 1970", 1_772_359_200, 1_772_359_200, "unix_ms"),
    time("ms", 1_772_359_200_001, 1_772_359_200_001, "unix_ms"),
    time("ms as text", " 1772359200001 ", 1_772_359_200_001, "unix_ms"),
    time("ms with a fraction", 1_772_359_200_001.9, 1_772_359_200_001, "unix_ms"),
    time("ms below 0", -1, -1, "unix_ms"),
    time("microseconds", 1_772_359_200_001_999, 1_772_359_200_001, "unix_us"),
    time("us below 0", -1, -1, "unix_us"),
    time("nanoseconds as us", 1_772_359_200_001_999_999, Refused("try time_format: unix_ns"), "unix_us"),
    time("ns", 1_772_359_200_001_999_999, 1_772_359_200_001, "unix_ns"),
    time("ns as text", "1772359200001999999", 1_772_359_200_001, "unix_ns"),
    time("ns below 0", -1, -1, "unix_ns"),
    time("2**63", 2**63, OUTSIDE, "unix_ms"),
    time("2**63 us", 2**63, OUTSIDE, "unix_us"),
    time("2**63 as text", str(2**63), OUTSIDE, "unix_s"),
    time("-2**63", -(2**63), OUTSIDE, "unix_ms"),
    time("last ms", YEAR_9999, YEAR_9999, "unix_ms"),
    time("one ms more", YEAR_9999 + 1, OUTSIDE, "unix_ms"),
    time("first ms", YEAR_1, YEAR_1, "unix_ms"),
    time("one ms less", YEAR_1 - 1, OUTSIDE, "unix_ms"),
    time("1e400", b"1e400", NOT_S, "unix_s"),
    time("1e400 ms", b"1e400", NOT_MS, "unix_ms"),
    time("NaN", "NaN", NOT_S, "unix_s"),
    time("inf", "-inf", NOT_S, "unix_s"),
    time("a date", "2026-03-01", NOT_MS, "unix_ms"),
    time("5,000 digits", "1" * 5000, NOT_MS, "unix_ms"),
    time("300 digits", "1" * 300, OUTSIDE, "unix_ms"),
    time("400 digits", "1" * 400, OUTSIDE, "unix_ms"),
    time("hexadecimal", "0x10", NOT_US, "unix_us"),
    time("ms with a fraction as text", "1772359200001.0", 1_772_359_200_001, "unix_ms"),
    time("us with a fraction", 1_772_359_200_001_000.0, 1_772_359_200_001, "unix_us"),
    time("fraction of us as text", "1.5", 0, "unix_us"),
    time("two fractions", "1.5.0", NOT_US, "unix_us"),
    time("empty s", "", NOT_S, "unix_s"),
    time("false", False, NOT_S, "unix_s"),
    time("null ms", None, Refused("is null"), "unix_ms"),
    time("list ms", [1], NOT_MS, "unix_ms"),
)
MISSING = (
    Case("no field", b"{}", Refused("the time field 'at' is missing"), at()),
    Case("another case", b'{"At": "2026-03-01"}', Refused("is missing"), at()),
)


@cases((*ISO, *ZONES, *EPOCHS, *MISSING))
def test_time_is_interpreted_as_meant(case: Case, tmp_path: Path) -> None:
    for source, record in everywhere(case.raw, case.form, tmp_path):
        check(record, case.expected, source)
        if not isinstance(case.expected, Refused):
            assert record.time_ms == case.time_ms, source
        check_way(record, case.form, source)
