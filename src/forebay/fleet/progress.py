"""Which requests of one replica have stalled.

Time limits follow progress: a request that waits in order at a working replica is not late. If a later
request overtakes it, its time starts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

PATIENCE = 4.0
"""Something may take this many times longer than recently before it is given up."""
PROGRESS_FADE = 1 / 50
STALE_S = 1.0
GIVEN_UP = 0.5
"""What was given up counts as having taken this share of its time, so the next gets twice as long."""


class TrackedRequest(Protocol):
    """A request at the replica. `timeout_s`: the longest time without progress."""

    timeout_s: float
    source: str | None
    """Whose request it is; requests of one source may share a fault."""
    epoch: int
    """The replica's `Health.epoch` when it was sent."""
    sent_s: float
    moved_s: float
    """When it last made progress or was sent."""
    overtaken_s: float
    """When a later request began before it; NaN if none did."""
    ended: bool
    ignore_silence: bool
    """Set while silence is not the replica's fault."""
    metrics_only: bool
    """Set while an answer in one piece is awaited: only metrics show that the replica works."""
    blocks: Sequence[int]
    """Hashes of the prompt's prefix blocks."""

    def set_aside(self) -> None:
        """Stop holding back other requests."""
        ...

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `RequestProgress.overdue`."""
        ...

    def mark_stalled(self, why: str) -> None:
        """Give the request up: the replica hangs or ignores it."""
        ...


class Peak:
    """The longest recent time: rises at once, and falls by a fiftieth of the difference with each shorter
    one."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        more_s = seconds - self.seconds
        self.seconds += more_s if more_s > 0 else more_s * PROGRESS_FADE


class RequestProgress:
    """Progress of one replica's requests.

    A request is overdue after its own `timeout_s`, or after `PATIENCE` times the recent time of the same
    phase, if that is longer. Requests that were given up count, too.
    """

    def __init__(self) -> None:
        self.moved_s = -math.inf
        """When the replica last showed that it works."""
        self._in_order: OrderedDict[TrackedRequest, None] = OrderedDict()
        self._overtaken: set[TrackedRequest] = set()
        self._silences = Peak()
        self._firsts = Peak()
        self._gaps = Peak()

    @property
    def longest_wait_s(self) -> float:
        """The longest time that a first token may take."""
        return PATIENCE * self._firsts.seconds

    @property
    def overtaken(self) -> int:
        """How many requests have not begun although later ones have: they wait for no place."""
        return len(self._overtaken)

    def moved(self, now_s: float) -> None:
        """Note a sign that the replica works."""
        self.moved_s = now_s

    def sent(self, request: TrackedRequest) -> None:
        self._in_order[request] = None

    def began(self, request: TrackedRequest, now_s: float) -> None:
        """Note the first content of an answer. Requests sent before it are overtaken."""
        self._firsts.add(now_s - request.sent_s)
        self._overtaken.discard(request)
        if math.isnan(request.overtaken_s):
            self._silences.add(now_s - max(self.moved_s, request.sent_s))
            while self._in_order:
                first, _ = self._in_order.popitem(last=False)
                if first is request:
                    break
                first.overtaken_s = now_s
                self._overtaken.add(first)
                first.set_aside()
        self.moved_s = request.moved_s = now_s

    def set_aside_stale(self, now_s: float) -> None:
        """Set aside requests that wait much longer than others did recently."""
        for request in self._in_order:
            if now_s - request.sent_s <= max(STALE_S, PATIENCE * self._firsts.seconds):
                break
            request.set_aside()

    def continued(self, request: TrackedRequest, now_s: float) -> None:
        """Note more content of an answer."""
        self._gaps.add(now_s - request.moved_s)
        self.moved_s = request.moved_s = now_s

    def ended(self, request: TrackedRequest) -> None:
        self._in_order.pop(request, None)
        self._overtaken.discard(request)

    def overdue(
        self, request: TrackedRequest, *, begun: bool, now_s: float, here_since_s: float
    ) -> tuple[float, bool]:
        """Return how long a stalled request made no progress, else 0; and whether the whole replica hangs.

        `here_since_s`: since when this process has run without a pause.
        """
        if begun:
            since_s, peak, hangs = request.moved_s, self._gaps, False
        elif not math.isnan(request.overtaken_s):
            since_s, peak, hangs = request.overtaken_s, self._firsts, False
        else:
            since_s, peak, hangs = max(request.sent_s, self.moved_s), self._silences, True
        silent_s = now_s - max(since_s, here_since_s)
        if request.ignore_silence or silent_s <= max(request.timeout_s, PATIENCE * peak.seconds):
            return 0.0, False
        peak.add(GIVEN_UP * silent_s)
        return silent_s, hangs
