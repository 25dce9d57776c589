"""A clock that moves only when told to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.clock import SystemClock


class ManualClock:
    """A `Clock` for tests. `sleep` passes time instead of waiting, and remembers how much."""

    def __init__(self, monotonic_s: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._wall_ms = float(wall_ms)
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        """Move both clocks. Raises `ValueError` for a negative step: monotonic time never goes back."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._monotonic_s += seconds
        self._wall_ms += seconds * 1000

    def pause(self, seconds: float) -> None:
        """A stand-in for `time.sleep` that advances this clock at once."""
        self.slept_s.append(seconds)
        self.advance(seconds)

    async def sleep(self, seconds: float) -> None:
        """The same for `asyncio.sleep`."""
        self.pause(seconds)


@dataclass(frozen=True)
class SetClock:
    """The system's clock with the wall clock `ahead_ms` ahead until the file `until` is there, then
    `behind_ms` behind; picklable."""

    ahead_ms: int
    until: Path | None = None
    behind_ms: int = 0

    def monotonic_s(self) -> float:
        return SystemClock().monotonic_s()

    def wall_ms(self) -> int:
        is_back = self.until is not None and self.until.exists()
        return SystemClock().wall_ms() + (-self.behind_ms if is_back else self.ahead_ms)
