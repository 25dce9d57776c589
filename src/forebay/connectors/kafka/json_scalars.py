"""Values of Avro and Protobuf that JSON lacks, without loss."""

from __future__ import annotations

import base64
import math
from datetime import date
from decimal import Decimal

from forebay.errors import MalformedRecord

DAY_S = 86_400
EPOCH_DAY = date(1970, 1, 1).toordinal() - 1
CYCLE_DAYS, CYCLE_YEARS = 146_097, 400
MAX_DECIMAL_BYTES = 1024
"""The time to convert grows with the square of the digits."""
MAX_DECIMAL_SCALE = 4096


class UnreadableValue(MalformedRecord):
    """`at`: path of the field, innermost name first."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.at: list[str] = []

    def __str__(self) -> str:
        words = super().__str__()
        return f"field {'.'.join(reversed(self.at))[:200]!r}: {words}" if self.at else words


def float_value(value: float) -> float | str:
    """As in Protobuf's JSON, numbers that are not finite are text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def bytes_value(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def decimal_value(unscaled: bytes, scale: int) -> str:
    """`unscaled` (big-endian two's complement) * 10^-`scale`, exact."""
    if len(unscaled) > MAX_DECIMAL_BYTES:
        raise UnreadableValue(f"a decimal has {len(unscaled)} bytes, the limit is {MAX_DECIMAL_BYTES}")
    if abs(scale) > MAX_DECIMAL_SCALE:
        raise UnreadableValue(f"a decimal has a scale of {scale}, the limit is {MAX_DECIMAL_SCALE}")
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = tuple(map(int, str(abs(number))))
    return format(Decimal((int(number < 0), digits, -scale)), "f")


def date_value(days: int) -> str:
    """`days` after 1970-01-01. Years outside 0 to 9999 have a sign."""
    cycles, day = divmod(days + EPOCH_DAY, CYCLE_DAYS)
    found = date.fromordinal(day + 1)
    year = found.year + cycles * CYCLE_YEARS
    shown = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{shown}-{found.month:02}-{found.day:02}"


def time_value(units: int, per_s: int) -> str:
    """`units` after midnight. `24:00:00` is the end of a day."""
    if not 0 <= units <= DAY_S * per_s:
        raise UnreadableValue(f"a time of day is between 0 and {DAY_S * per_s}, found {units}")
    seconds, fraction = divmod(units, per_s)
    return _clock(seconds, fraction, per_s)


def moment_value(units: int, per_s: int, zone: str = "+00:00") -> str:
    seconds, fraction = divmod(units, per_s)
    days, second = divmod(seconds, DAY_S)
    return f"{date_value(days)}T{_clock(second, fraction, per_s)}{zone}"


def duration_value(months: int, days: int, milliseconds: int) -> str:
    """Such as `P1M2DT3.500S`."""
    return f"P{months}M{days}DT{milliseconds // 1000}.{milliseconds % 1000:03}S"


def _clock(second: int, fraction: int, per_s: int) -> str:
    digits = max(6, len(str(per_s)) - 1)
    shown = f".{fraction * (10**digits // per_s):0{digits}}" if fraction else ""
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}{shown}"
