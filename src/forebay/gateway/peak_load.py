"""The load metric that autoscalers read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.clock import Clock
from forebay.fleet.autoscale.proportional import StabilizationWindow

PEAK_LOAD = "forebay_gateway_peak_load"
PEAK_S = 30.0


class PeakLoad:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._highest = StabilizationWindow(PEAK_S)

    @contextmanager
    def request(self) -> Iterator[None]:
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def peak(self) -> int:
        return self._highest.add(self._count, self._clock.monotonic_s())

    def _change(self, by: int) -> None:
        now_s = self._clock.monotonic_s()
        # The old count held until now.
        self._highest.add(self._count, now_s)
        self._count += by
        self._highest.add(self._count, now_s)
