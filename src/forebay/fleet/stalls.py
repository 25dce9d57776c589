"""Which replicas and requests make no progress, and what follows for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from forebay.clock import Clock
from forebay.fleet.member import Member
from forebay.fleet.state import STALE_S, Fleet


class StallDetector:
    """Looks for replicas that are silent with requests in flight, longer than `stall_s` and than expected.

    `sync` is called when a replica must get no more requests. Belongs to one event loop.
    """

    def __init__(
        self,
        rows: Mapping[int, Member],
        fleet: Fleet,
        clock: Clock,
        stall_s: float,
        *,
        sync: Callable[[Member], None],
    ) -> None:
        self._rows = rows
        self._fleet = fleet
        self._clock = clock
        self._stall_s = stall_s
        self._sync = sync
        self._resumed_s = -math.inf

    def resumed(self) -> None:
        """Ignore all silence until now: this process itself did not run."""
        self._resumed_s = self._clock.monotonic_s()

    def find(self) -> None:
        """Give up requests without progress; shut replicas that hang, sooner if another can take over."""
        now_s = self._clock.monotonic_s()
        for member in list(self._rows.values()):
            if self._fleet.reported_s[member.row] < now_s - STALE_S:
                member.claimed_s = 0.0
            since_s = max(member.silent_since_s(), self._resumed_s)
            patience_s = member.patience_s(self._fleet, self._stall_s)
            if now_s - since_s > patience_s and self._others_work(member, since_s, now_s):
                self._give_up(member, now_s - since_s)
                continue
            member.look(self._fleet, now_s)
            for lease in list(member.leases):
                silent_s, hangs = lease.overdue(now_s, self._resumed_s)
                if hangs:
                    self._give_up(member, silent_s)
                    break
                if silent_s:
                    lease.mark_stalled(f"{member.url} made no progress on a request for {silent_s:.1f} s")

    def _give_up(self, member: Member, silent_s: float) -> None:
        why = f"{member.url} sent nothing for {silent_s:.1f} s with requests in flight"
        if member.health.state != "shut":
            member.held = True
            member.health.accuse(why)
            self._sync(member)
        for lease in list(member.leases):
            lease.mark_stalled(why)

    def _others_work(self, member: Member, since_s: float, now_s: float) -> bool:
        """Whether another replica may take the requests, and is not as silent itself."""
        others = (other for other in self._rows.values() if other is not member and other.open(now_s))
        return any(not other.leases or other.moved_since(since_s) for other in others)
