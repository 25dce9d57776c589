"""Waiting for a condition, for tests that may not sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.01
LOOKS_SHARE = 0.2
"""Of the time, so much goes into looks: what they ask has work of its own to do, often on the same cores."""
WAITED_SHARE = 0.02
"""A pause is at most so much of the time that was waited already, where a look is quick."""
MAX_QUICK_PAUSE_S = 0.1
MAX_PAUSE_S = 0.5


def wait_until(
    condition: Callable[[], bool], timeout_s: float = 180.0, *, tell: Callable[[], str] | None = None
) -> None:
    """Return when `condition` holds. Blocks meanwhile.

    Args:
        condition: Looked at every 10 ms, and less often the longer it takes: every 0.1 s after five seconds.
            The pause after a look is four times as long as the look, at most 0.5 s.
        timeout_s: Seconds after which to give up.
        tell: Makes a text for the error's message.

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
            told = f": {tell()}" if tell else ""
            raise AssertionError(f"the condition did not come true within {timeout_s:g} s{told}")
        pause.wait(pause_s(now_s - begin_s, now_s - start_s))


def pause_s(look_s: float, waited_s: float) -> float:
    """How long to pause after a look that took `look_s`, `waited_s` after the first one began."""
    quick_s = min(max(POLL_S, waited_s * WAITED_SHARE), MAX_QUICK_PAUSE_S)
    return min(max(quick_s, look_s * (1 / LOOKS_SHARE - 1)), MAX_PAUSE_S)
