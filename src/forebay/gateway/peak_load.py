"""How much the replicas have to do for the gateway, for whoever scales them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.autoscale.proportional import Hold
from forebay.clock import Clock

PEAK_LOAD = "forebay_gateway_peak_load"
"""The metric."""
PEAK_S = 30.0
"""Several times the pause between two reads of the metrics, so that no read misses a short request."""


class PeakLoad:
    """Counts the requests that wait for a replica or are at one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._highest = Hold(PEAK_S)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one more request while the block runs."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def peak(self) -> int:
        """The most requests at a time within the last `PEAK_S` seconds."""
        return self._highest.add(self._count, self._clock.monotonic_s())

    def _change(self, by: int) -> None:
        now_s = self._clock.monotonic_s()
        # The old number was true until now.
        self._highest.add(self._count, now_s)
        self._count += by
        self._highest.add(self._count, now_s)
