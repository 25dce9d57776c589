"""Finds replicas at fault: those that are silent, and those that do not answer a probe.

A probe is a small request of our own. Failures of clients' requests alone may be the requests' fault.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from forebay.clock import Clock
from forebay.errors import EngineError
from forebay.fleet.replica import Replica

log = logging.getLogger(__name__)

PAUSE_S = 1.0
HOLD_S = 0.25
"""How long a refusing replica gets nothing while it is probed: under load a probe waits."""


class StallDetector:
    """Looks for replicas that are silent with requests in flight, longer than `stall_s` and than expected.

    `sync` is called when a replica must get no more requests. Belongs to one event loop.
    """

    def __init__(
        self,
        rows: Mapping[int, Replica],
        clock: Clock,
        stall_s: float,
        *,
        sync: Callable[[Replica], None],
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._stall_s = stall_s
        self._sync = sync
        self._resumed_s = -math.inf

    def resumed(self) -> None:
        self._resumed_s = self._clock.monotonic_s()

    def find(self) -> None:
        """Give up requests without progress; shut replicas that hang, sooner if another can take over."""
        now_s = self._clock.monotonic_s()
        for replica in list(self._rows.values()):
            replica.forget_stale_report(now_s)
            since_s = max(replica.silent_since_s(), self._resumed_s)
            patience_s = replica.patience_s(self._stall_s, now_s)
            if now_s - since_s > patience_s and self._others_work(replica, since_s, now_s):
                replica.given_up_s = now_s
                self._give_up(replica, now_s - since_s)
                continue
            replica.tick(now_s)
            for lease in list(replica.leases):
                silent_s, hangs = lease.overdue(now_s, self._resumed_s)
                if hangs:
                    self._give_up(replica, silent_s)
                    break
                if silent_s:
                    lease.mark_stalled(f"{replica.url} made no progress on a request for {silent_s:.1f} s")

    def _give_up(self, replica: Replica, silent_s: float) -> None:
        why = f"{replica.url} made no progress for {silent_s:.1f} s with requests in flight"
        if replica.health.state != "shut":
            replica.suspect(why)
            self._sync(replica)
        for lease in list(replica.leases):
            lease.mark_stalled(why)

    def _others_work(self, replica: Replica, since_s: float, now_s: float) -> bool:
        others = (other for other in self._rows.values() if other is not replica and other.open(now_s))
        return any(not other.leases or other.progress.moved_s > since_s for other in others)


class Probes:
    """Probes the replicas that serve `model`; None: the first model of each. Belongs to one event loop.

    A probe may take `least_s`, or four times as long as a recent first token. `note_shut` is called with a
    change that may shut a replica, `sync` after any other.
    """

    def __init__(
        self,
        model: str | None,
        least_s: float,
        clock: Clock,
        *,
        sync: Callable[[Replica], None],
        note_shut: Callable[[Replica, Callable[[], None]], None],
    ) -> None:
        self._model = model
        self._least_s = least_s
        self._clock = clock
        self._sync = sync
        self._note_shut = note_shut
        self._judging: dict[Replica, asyncio.Task[None]] = {}

    async def close(self) -> None:
        tasks = list(self._judging.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def fault(self, replica: Replica) -> str:
        error = await self.error(replica)
        return "" if error is None else str(error)

    async def error(self, replica: Replica) -> EngineError | None:
        model = self._model or next((model.name for model in replica.models), "")
        try:
            await replica.connection.probe(model, max(self._least_s, replica.progress.longest_wait_s))
        except EngineError as error:
            return error
        return None

    async def reopen(self, replica: Replica) -> None:
        why = await self.fault(replica)
        now_s = self._clock.monotonic_s()
        if why:
            replica.health.shut(why, now_s)
        else:
            replica.health.probe_passed(now_s)
            log.info("replica %s is tried again", replica.url)

    def judge(self, replica: Replica) -> None:
        if replica not in self._judging:
            task = self._judging[replica] = asyncio.get_running_loop().create_task(self._judge(replica))
            task.add_done_callback(lambda _: self._judging.pop(replica, None))

    async def _judge(self, replica: Replica) -> None:
        wait_s = replica.cleared_s + PAUSE_S - self._clock.monotonic_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        suspicion = replica.health.suspicion
        if suspicion is None:
            await self._check_limit(replica)
            return
        release: asyncio.TimerHandle | None = None
        if not suspicion.shuts and not replica.held:
            # It may be full: more requests would only be refused.
            replica.held = True
            release = asyncio.get_running_loop().call_later(HOLD_S, self._release, replica)
            self._sync(replica)
        why = await self.fault(replica)
        now_s = self._clock.monotonic_s()
        if release is not None:
            release.cancel()
        replica.held = False
        if why:
            self._note_shut(replica, lambda: replica.confirm_suspicion(now_s))
            return
        log.warning(
            "replica %s answers a probe, though requests failed there: %s", replica.url, suspicion.why
        )
        replica.clear_suspicion(now_s)
        self._sync(replica)

    async def _check_limit(self, replica: Replica) -> None:
        limit = replica.refusals
        while replica.must_probe_limit(limit):
            if await self.fault(replica):
                limit.checked = True
                return
            limit.probes += 1
        if replica.refutes_limit(limit, self._clock.monotonic_s()):
            log.warning("replica %s answers probes, though it refuses requests", replica.url)
            self._sync(replica)

    def _release(self, replica: Replica) -> None:
        replica.held = False
        self._sync(replica)
