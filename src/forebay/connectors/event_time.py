"""Event time out of a record's field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from forebay.errors import MalformedRecord, SettingError
from forebay.records import JSON

ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9})\d*)?)?\s?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.I,
)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
EARLIEST_MS = -62_135_596_800_000  # year 1
LATEST_MS = 253_402_300_799_999  # year 9999
UNITS: dict[str, float] = {"unix_s": 1000.0, "unix_ms": 1.0, "unix_us": 0.001}


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where a record's time stands and how it is written.

    `path` is a field's name, with dots into nested objects. `format` is `iso8601` (without a zone: UTC),
    `unix_s`, `unix_ms`, `unix_us` (numbers, or text that holds one), or a `strptime` pattern with a `%`.
    """

    path: str
    format: str = "iso8601"

    def __post_init__(self) -> None:
        if self.format != "iso8601" and self.format not in UNITS and "%" not in self.format:
            names = ", ".join(("iso8601", *UNITS))
            raise SettingError(
                f"time format must be one of {names} or a pattern with %, found {self.format!r}"
            )

    def of(self, fields: Mapping[str, JSON]) -> int:
        """Milliseconds since the Unix epoch, rounded down.

        Raises `MalformedRecord` where the field is missing, is no such time, or is outside years 1 to 9999.
        """
        value: JSON = fields
        for name in self.path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise MalformedRecord(f"the time field {self.path!r} is missing")
            value = value[name]
        try:
            time_ms = self._reader()(value)
        except (ValueError, OverflowError, TypeError):
            raise MalformedRecord(
                f"the time field {self.path!r} is not {self.format}: {str(value)[:80]!r}"
            ) from None
        if not EARLIEST_MS <= time_ms <= LATEST_MS:
            raise MalformedRecord(
                f"the time field {self.path!r} is outside years 1 to 9999: {str(value)[:80]!r}"
            )
        return time_ms

    def _reader(self) -> Callable[[JSON], int]:
        if self.format == "iso8601":
            return _iso8601_ms
        if self.format in UNITS:
            return self._unix_ms
        return self._pattern_ms

    def _unix_ms(self, value: JSON) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        if self.format == "unix_us" and not isinstance(value, float):
            return int(value) // 1000
        if self.format == "unix_ms" and not isinstance(value, float):
            return int(value)
        return int(float(value) * UNITS[self.format] // 1)

    def _pattern_ms(self, value: JSON) -> int:
        if not isinstance(value, str):
            raise TypeError
        return _since_epoch_ms(datetime.strptime(value, self.format))


def _iso8601_ms(value: JSON) -> int:
    match = ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    moment = datetime(
        int(year),
        int(month),
        int(day),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        int((fraction or "0").ljust(6, "0")[:6]),
        tzinfo=timezone(_offset(zone)),
    )
    return _since_epoch_ms(moment)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone in "Zz":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -offset if zone[0] == "-" else offset


def _since_epoch_ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - EPOCH) // timedelta(milliseconds=1)
