"""Reads the result lines of an application for its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from forebay.json_numbers import read_json

MAX_DETAIL_CHARS = 300


def read_results(
    lines: Iterable[bytes],
    add: Callable[[Any], None],
    fail: Callable[[Any, str], None] | None = None,
    prefix: str = "",
) -> None:
    """Hand the answer of each result to `add`, and each dead letter of a question to `fail`.

    `prefix` is how the positions of such dead letters begin; `fail` receives the event that was asked about,
    and the cause. Lines that are something else are skipped, and so are those for which either raises what a
    missing or odd field raises.
    """
    for line in lines:
        try:
            value = read_json(line)
            # The model's answers have such a position, too.
            if fail is not None and "cause" in value and str(value.get("position")).startswith(prefix):
                cause = f"{value['cause']}: {value['detail'][:MAX_DETAIL_CHARS]}"
                fail(read_json(value["input"].encode()), cause)
            else:
                add(value["answer"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def readable(time_ms: int) -> str:
    """A time as ISO 8601 in UTC with seconds, or the milliseconds if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, timezone.utc).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
