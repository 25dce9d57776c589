"""What a replica makes of its requests, and which of them it has left lying.

Time limits follow progress. A request that waits at a replica that works on others, in their order, is not
late however slow the replica is. One that was overtaken could have begun, and its time runs from then.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

PATIENCE = 4.0
"""How many times longer than was seen lately something may take before it is given up."""
FADE = 1 / 50
STALE_S = 1.0
GIVEN_UP = 0.5
"""What was given up counts as having taken this share of its time, so that the next gets twice as long."""


class Tracked(Protocol):
    """A request at the replica. `timeout_s`: for how long there may be no progress on it."""

    timeout_s: float
    sent_s: float
    moved_s: float
    """When something of its answer came last; when it was sent, before that."""
    passed_s: float
    """Since when one that was sent later has begun; NaN while none has."""
    quiet: bool
    """Set while silence says nothing of the replica."""
    unseen: bool
    """Set while an answer in one piece is awaited: only metrics can show that the replica works."""
    blocks: Sequence[int]
    """Hashes of the prompt's prefix blocks."""

    def set_aside(self) -> None:
        """Others are not to wait for it any longer."""
        ...

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `Progress.overdue`."""
        ...

    def mark_stalled(self, why: str) -> None:
        """The replica hangs, or left this request lying."""
        ...


class Peak:
    """The longest time lately: it is reached at once, and forgotten by a fiftieth with each shorter one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        more_s = seconds - self.seconds
        self.seconds += more_s if more_s > 0 else more_s * FADE


class Progress:
    """One replica's. It is told of each request that it was sent, that began, that went on and that ended.

    A request is overdue after its own `timeout_s`, or `PATIENCE` times what such a thing took lately where
    that is longer; what was given up counts as seen.
    """

    def __init__(self) -> None:
        self.moved_s = -math.inf
        """When anything showed that the replica works."""
        self._in_order: OrderedDict[Tracked, None] = OrderedDict()
        self._silences = Peak()
        self._firsts = Peak()
        self._gaps = Peak()

    def moved(self, now_s: float) -> None:
        """Something shows that the replica works."""
        self.moved_s = now_s

    def sent(self, request: Tracked) -> None:
        self._in_order[request] = None

    def began(self, request: Tracked, now_s: float) -> None:
        """The first content of its answer, or all of it. Those that were sent before it are overtaken."""
        self._firsts.add(now_s - request.sent_s)
        if math.isnan(request.passed_s):
            self._silences.add(now_s - max(self.moved_s, request.sent_s))
            while self._in_order:
                first, _ = self._in_order.popitem(last=False)
                if first is request:
                    break
                first.passed_s = now_s
                first.set_aside()
        self.moved_s = request.moved_s = now_s

    def set_aside_stale(self, now_s: float) -> None:
        """Those that wait for much longer than any did lately do not keep others from being sent."""
        for request in self._in_order:
            if now_s - request.sent_s <= max(STALE_S, PATIENCE * self._firsts.seconds):
                break
            request.set_aside()

    def went_on(self, request: Tracked, now_s: float) -> None:
        """More of an answer that has begun."""
        self._gaps.add(now_s - request.moved_s)
        self.moved_s = request.moved_s = now_s

    def ended(self, request: Tracked) -> None:
        self._in_order.pop(request, None)

    def overdue(
        self, request: Tracked, *, begun: bool, now_s: float, here_since_s: float
    ) -> tuple[float, bool]:
        """For how long there was no progress where that is too long, else 0; and whether on nothing at all.

        `here_since_s`: since when this process itself was there to see it.
        """
        if begun:
            since_s, peak, hangs = request.moved_s, self._gaps, False
        elif not math.isnan(request.passed_s):
            since_s, peak, hangs = request.passed_s, self._firsts, False
        else:
            since_s, peak, hangs = max(request.sent_s, self.moved_s), self._silences, True
        silent_s = now_s - max(since_s, here_since_s)
        if request.quiet or silent_s <= max(request.timeout_s, PATIENCE * peak.seconds):
            return 0.0, False
        peak.add(GIVEN_UP * silent_s)
        return silent_s, hangs
