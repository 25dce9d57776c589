"""Waiting for a condition, for tests that may not sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.01


def wait_until(
    condition: Callable[[], bool], timeout_s: float = 180.0, *, tell: Callable[[], str] | None = None
) -> None:
    """Return when `condition` holds; raises `AssertionError` after `timeout_s`, saying what `tell` tells."""
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            told = f": {tell()}" if tell else ""
            raise AssertionError(f"the condition did not come true within {timeout_s:g} s{told}")
        pause.wait(POLL_S)
