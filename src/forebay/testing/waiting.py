"""Waiting for a condition, for tests that may not sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.01


def wait_until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    """Return when `condition` holds; raises `AssertionError` after `timeout_s`."""
    pause = threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"the condition did not come true within {timeout_s:g} s")
        pause.wait(POLL_S)
