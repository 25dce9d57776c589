"""Waiting for a condition, for tests that must not sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.01
LOOKS_SHARE = 0.2
"""Maximum share of time spent evaluating the condition, which often competes for the same cores."""
WAITED_SHARE = 0.02
"""A pause after a quick evaluation is at most this share of the time waited so far."""
MAX_QUICK_PAUSE_S = 0.1
MAX_PAUSE_S = 0.5


def wait_until(
    condition: Callable[[], bool], timeout_s: float = 180.0, *, describe: Callable[[], str] | None = None
) -> None:
    """Block until `condition` is true.

    Args:
        condition: Evaluated every 10 ms, and less often over time: every 0.1 s after five seconds. The pause
            is four times the duration of the evaluation, at most 0.5 s.
        timeout_s: Seconds after which to give up.
        describe: Makes a text for the error message.

    Raises `AssertionError` after `timeout_s`.

    >>> wait_until(lambda: True, timeout_s=5)
    """
    pause = threading.Event()
    start_s = time.monotonic()
    while True:
        begin_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        if now_s >= start_s + timeout_s:
            detail = f": {describe()}" if describe else ""
            raise AssertionError(f"the condition did not come true within {timeout_s:g} s{detail}")
        pause.wait(pause_s(now_s - begin_s, now_s - start_s))


def pause_s(look_s: float, waited_s: float) -> float:
    quick_s = min(max(POLL_S, waited_s * WAITED_SHARE), MAX_QUICK_PAUSE_S)
    return min(max(quick_s, look_s * (1 / LOOKS_SHARE - 1)), MAX_PAUSE_S)
