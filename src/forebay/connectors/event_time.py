"""Read an event's time from a field of the record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
MODERN_MS = 4_102_444_800_000  # year 2100
SUSPECT_TIMES = (
    "is the source's time_format right? Seconds that are read as milliseconds are in 1970, dates without a "
    "year in 1900"
)
MAX_TEXT_CHARS = 200
ZONE_NAME = re.compile(r"[A-Za-z]+")
NAMES_ZONE = re.compile(r"(?<!%)(?:%%)*%Z")
UTC_NAMES = frozenset(("UTC", "GMT", "Z"))
PER_MS = {"unix_ms": 1, "unix_us": 1000, "unix_ns": 1_000_000}
UNITS = ("unix_s", *PER_MS)


@dataclass(frozen=True, slots=True)
class EventTime:
    """`path`: dots lead into nested objects. `format`: `iso8601`, `unix_s`, `unix_ms`, `unix_us`, `unix_ns`,
    or a `strptime` pattern. `zone`: of times without one; of two equal local times, the first counts."""

    path: str
    format: str = "iso8601"
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if self.format != "iso8601" and self.format not in UNITS and "%" not in self.format:
            names = ", ".join(("iso8601", *UNITS))
            raise SettingError(
                f"time format must be one of {names} or a pattern with %, found {self.format!r}"
            )

        zone_of(self.zone)

    def of(self, fields: Mapping[str, JSON]) -> int:
        """Milliseconds since 1970, rounded down. Raises `MalformedRecord`, also outside years 1 to 9999."""
        value: JSON = fields
        for name in self.path.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise MalformedRecord(f"the time field {self.path!r} is missing")
            value = value[name]
        if value is None:
            raise MalformedRecord(f"the time field {self.path!r} is null")
        try:
            time_ms = self._reader()(value)
        except UnknownZone as error:
            raise MalformedRecord(f"the time field {self.path!r}: {error}") from None
        except (ValueError, OverflowError, TypeError):
            raise MalformedRecord(
                f"the time field {self.path!r} is not {self.format}: {str(value)[:80]!r}"
            ) from None
        if not EARLIEST_MS <= time_ms <= LATEST_MS:
            raise MalformedRecord(
                f"the time field {self.path!r} is outside years 1 to 9999: {str(value)[:80]!r}"
                f"{self._hint(value)}"
            )
        return time_ms

    def written(self, time_ms: int) -> str | int:
        """A value from which `of` returns this time, or an earlier one."""
        if self.format in UNITS:
            return time_ms * PER_MS[self.format] if self.format in PER_MS else time_ms // 1000
        moment = (EPOCH + timedelta(milliseconds=time_ms)).astimezone(zone_of(self.zone))
        return moment.isoformat() if self.format == "iso8601" else moment.strftime(self.format)

    def _reader(self) -> Callable[[JSON], int]:
        if self.format == "iso8601":
            return self._iso8601_ms
        if self.format in UNITS:
            return self._unix_ms
        return self._pattern_ms

    def _unix_ms(self, value: JSON) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError
        return _since_1970_ms(_number(value) if isinstance(value, str) else value, self.format)

    def _hint(self, value: JSON) -> str:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            return ""  # Not a number, or an integer too large for a float.
        if self.format in UNITS and math.isfinite(number):
            for unit in UNITS[UNITS.index(self.format) + 1 :]:
                if 0 < _since_1970_ms(number, unit) < MODERN_MS:
                    return f"; try time_format: {unit}"
        return ""

    def _pattern_ms(self, value: JSON) -> int:
        if not isinstance(value, str):
            raise TypeError
        if NAMES_ZONE.search(self.format):
            return _since_epoch_ms(self._with_named_zone(value))
        return self._in_zone_ms(datetime.strptime(value, self.format))

    def _with_named_zone(self, value: str) -> datetime:
        """`strptime` accepts only names of this machine's zone, and drops them."""
        if len(value) > MAX_TEXT_CHARS:
            raise ValueError
        for word in reversed(list(ZONE_NAME.finditer(value))):
            try:
                moment = datetime.strptime(f"{value[: word.start()]}UTC{value[word.end() :]}", self.format)
            except ValueError:
                continue
            return moment if moment.tzinfo is not None else self._named(moment, word[0].upper())
        raise ValueError

    def _named(self, moment: datetime, name: str) -> datetime:
        if name in UTC_NAMES:
            return moment.replace(tzinfo=timezone.utc)
        for fold in (0, 1):
            local = moment.replace(tzinfo=zone_of(self.zone), fold=fold)
            if (local.tzname() or "").upper() == name:
                return local
        raise UnknownZone(
            f"{name!r} is not a name of the time zone {self.zone} at this time; set time_zone to the zone of "
            f"these times, such as America/New_York"
        )

    def _iso8601_ms(self, value: JSON) -> int:
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
            tzinfo=None if zone is None else timezone(_offset(zone)),
        )
        return self._in_zone_ms(moment)

    def _in_zone_ms(self, moment: datetime) -> int:
        return _since_epoch_ms(
            moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_of(self.zone))
        )


class UnknownZone(Exception): ...


def zone_of(name: str) -> tzinfo:
    """Raises `SettingError`."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingError(
            f"time zone: expected a name of the IANA database such as Europe/Berlin, found {name[:80]!r}"
        ) from None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _since_1970_ms(number: float, unit: str) -> int:
    return int(number * 1000 // 1 if unit == "unix_s" else number // PER_MS[unit])


def _offset(zone: str) -> timedelta:
    if zone in "Zz":
        return timedelta()
    digits = zone[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -offset if zone[0] == "-" else offset


def _since_epoch_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)
