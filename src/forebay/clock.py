"""Clocks, to be passed in: monotonic time for durations, wall-clock time only for event time."""

from __future__ import annotations

import time
from typing import Protocol


def uptime_s() -> float:
    """Seconds since the machine started, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Never goes back. On Linux, all processes of a machine share it."""
        ...

    def wall_ms(self) -> int:
        """Since the Unix epoch; may jump."""
        ...

    def wall_us(self) -> int:
        """Since the Unix epoch; may jump."""
        ...


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000
