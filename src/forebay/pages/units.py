"""How texts, values with units, and times are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from markupsafe import Markup

from forebay.untrusted_text import replace_controls

MIN_SHOWN = 0.0005
MAX_TEXT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Unit:
    name: str
    scale: float = 1.0


NUMBER, SECONDS, SHARE = Unit(""), Unit("s"), Unit("%", 100.0)
MILLISECONDS = Unit("ms", 1000.0)
"""For all times of a table, so that its rows are comparable."""


def time_unit(most_s: float) -> Unit:
    return SECONDS if most_s >= 2 else MILLISECONDS if most_s >= 0.002 else Unit("µs", 1e6)


def shown(value: float, unit: Unit | None = None, *, digits: int = 3) -> str:
    """With `digits` significant digits: `1,230 ms`, `0.42 s`."""
    scaled = value * (unit.scale if unit else 1.0)
    if not math.isfinite(scaled):
        words = "–"
    elif abs(scaled) < MIN_SHOWN:
        words = "0"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(abs(scaled))))
        words = f"{round(scaled, places):,.{min(places, 3)}f}"
        words = words.rstrip("0").rstrip(".") if "." in words else words
    return f"{words} {unit.name}" if unit and unit.name else words


def moment(time_ms: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """In UTC, such as `2017-08-27 00:14:48`; a dash for None or a time outside the years 1 to 9999."""
    if time_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return "–"


def shown_text(value: Any) -> Any:
    """A text without control characters, truncated to `MAX_TEXT_CHARS`; anything else unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value if len(value) <= MAX_TEXT_CHARS else value[: MAX_TEXT_CHARS - 1] + "…"
    return replace_controls(cut)
