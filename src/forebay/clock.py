"""Clocks that are passed in: monotonic time for durations, wall-clock time for event time only."""

from __future__ import annotations

import time
from typing import Protocol


def uptime_s() -> float:
    """Seconds since the machine started, time in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock(Protocol):
    """What a component may ask about time."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back. On Linux it is shared by all processes of a machine."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def wall_us(self) -> int:
        """The same in microseconds."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000
