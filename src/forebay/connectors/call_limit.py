"""How much a source hands on in one call of its function: what there is room for, for a moment.

No barrier and no timer of the task gets through while a function hands records on, and a record for which
there is no room waits until the job behind it has worked one off: seconds, where that is a slow engine.
"""

from __future__ import annotations

from forebay.clock import Clock, SystemClock
from forebay.jvm_task import HasRoom

MOST_S = 0.05
WAIT_S = 0.01
"""The longest wait for a record in one call."""


class CallLimit:
    """Says after each record whether the call has to end. The first record of a call needs no asking: Flink
    calls a function only where there is room for one."""

    def __init__(self, has_room: HasRoom, *, most_s: float = MOST_S, clock: Clock | None = None) -> None:
        self._has_room = has_room
        self._most_s = most_s
        self._clock = clock or SystemClock()
        self._until_s = 0.0

    def begin(self) -> None:
        """A call begins."""
        self._until_s = self._clock.monotonic_s() + self._most_s

    def reached(self) -> bool:
        """Whether the record just handed on has to be the call's last."""
        return not self._has_room() or self._clock.monotonic_s() >= self._until_s
