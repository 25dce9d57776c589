"""The time that one record has for its answer."""

from __future__ import annotations

import math


class Deadline:
    """Counts a record's time: for good from its first call on; before it, only while nothing could take it.

    A record that waits for room at an engine that works is not late, however slow the engine is. One that
    waits while no engine answers is. Moments are passed in, on the monotonic clock.
    """

    __slots__ = ("_left_s", "_since_s", "begun_s")

    def __init__(self, seconds: float = math.inf) -> None:
        self._left_s = seconds
        self._since_s: float | None = None
        self.begun_s: float | None = None
        """When the first call was made; None before it."""

    def begin(self, now_s: float) -> None:
        """A call is made: from the first one on time counts for good."""
        if self.begun_s is None:
            self.begun_s = now_s
            self.wait(now_s, counts=True)

    def wait(self, now_s: float, *, counts: bool) -> None:
        """No call was made yet. From now on time `counts`, as nothing can take the record, or it does not."""
        if counts and self._since_s is None:
            self._since_s = now_s
        elif not counts and self._since_s is not None and self.begun_s is None:
            self._left_s -= now_s - self._since_s
            self._since_s = None

    def left_s(self, now_s: float) -> float:
        """Seconds that are left if time counts from now on; negative once it is over."""
        return self._left_s - (0.0 if self._since_s is None else now_s - self._since_s)
