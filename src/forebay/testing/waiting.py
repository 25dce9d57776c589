"""Waiting for a condition, for tests that may not sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.01
MAX_PAUSE_S = 0.5


def wait_until(
    condition: Callable[[], bool], timeout_s: float = 180.0, *, tell: Callable[[], str] | None = None
) -> None:
    """Return when `condition` holds. Blocks meanwhile.

    Args:
        condition: Looked at every 10 ms; if a look takes longer, the pause after it is as long, at most 0.5
            s.
        timeout_s: Seconds after which to give up.
        tell: Makes a text for the error's message.

    Raises `AssertionError` after `timeout_s`.

    >>> wait_until(lambda: True, timeout_s=5)
    """
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while True:
        begin_s = time.monotonic()
        if condition():
            return
        now_s = time.monotonic()
        if now_s >= deadline_s:
            told = f": {tell()}" if tell else ""
            raise AssertionError(f"the condition did not come true within {timeout_s:g} s{told}")
        pause.wait(min(max(POLL_S, now_s - begin_s), MAX_PAUSE_S))
