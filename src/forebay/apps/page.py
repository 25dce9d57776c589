"""Reads the result lines of an application for its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from forebay.json_numbers import read_json

MAX_DETAIL_CHARS = 300
MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""Raised when a line does not hold what a result of the application holds: the page skips it."""


def read_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """The JSON values of lines, without those that are not JSON."""
    for line in lines:
        try:
            yield read_json(line)
        except ValueError:
            continue


def failed_question(line: Any, prefix: str) -> tuple[dict[str, Any], str] | None:
    """If `line` is the dead letter of a question: the event that was asked about, and the cause.

    `prefix` is how the positions of such questions begin.
    """
    if not isinstance(line, dict) or not str(line.get("position")).startswith(prefix):
        return None
    about = read_json(line["input"].encode())
    return about, f"{line['cause']}: {line['detail'][:MAX_DETAIL_CHARS]}"


def readable(time_ms: int) -> str:
    """A time as ISO 8601 in UTC with seconds, or the milliseconds if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, timezone.utc).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
