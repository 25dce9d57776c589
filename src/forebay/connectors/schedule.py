"""When each event of a generated stream is due: a base rate, and bursts of a higher one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forebay.errors import SettingError


@dataclass(frozen=True, slots=True)
class Burst:
    """From `start_s` on, for `duration_s`, `factor` times the base rate, with a `share` of one topic."""

    start_s: float
    duration_s: float
    factor: float = 4.0
    topic: str = "outage"
    share: float = 0.8

    def __post_init__(self) -> None:
        if self.start_s < 0 or self.duration_s <= 0 or self.factor <= 0 or not 0 <= self.share <= 1:
            raise SettingError(
                "a burst needs start_s >= 0, duration_s > 0, factor > 0 and share from 0 to 1, found "
                f"{self.start_s}, {self.duration_s}, {self.factor}, {self.share}"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Piecewise constant rates. Bursts must not overlap and stand in order of time."""

    rate_per_s: float
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise SettingError(f"rate_per_s must be above 0, found {self.rate_per_s}")
        for burst, following in zip(self.bursts, self.bursts[1:], strict=False):
            if burst.start_s + burst.duration_s > following.start_s:
                raise SettingError("bursts must stand in order of time and not overlap")

    def due_s(self, index: int) -> float:
        """Seconds from the start at which event `index` (from 0) is due; never falls with the index."""
        before, at_s = 0.0, 0.0
        for start_s, end_s, rate_per_s in self._segments():
            in_segment = (end_s - start_s) * rate_per_s
            if index < before + in_segment:
                return start_s + (index - before) / rate_per_s
            before, at_s = before + in_segment, end_s
        return at_s + (index - before) / self.rate_per_s

    def burst_at(self, time_s: float) -> Burst | None:
        """The burst that `time_s` lies in."""
        for burst in self.bursts:
            if burst.start_s <= time_s < burst.start_s + burst.duration_s:
                return burst
        return None

    def _segments(self) -> Iterator[tuple[float, float, float]]:
        at_s = 0.0
        for burst in self.bursts:
            end_s = burst.start_s + burst.duration_s
            yield at_s, burst.start_s, self.rate_per_s
            yield burst.start_s, end_s, self.rate_per_s * burst.factor
            at_s = end_s
