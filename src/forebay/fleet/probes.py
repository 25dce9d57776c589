"""Small requests of our own that show whether a replica works; clients' requests alone do not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forebay.clock import Clock
from forebay.errors import EngineError
from forebay.fleet.member import Member

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Time between probes of a replica that answers them while requests fail there."""
PROOF = 3
"""Probes in a row that show that a replica takes more requests than a limit allows."""
HOLD_S = 0.25
"""How long a refusing replica gets nothing while it is probed: under load a probe waits."""


class Probes:
    """Probes the replicas that serve `model`; None: the first model of each.

    A probe may take `least_s`, or four times as long as a recent first token. `note_shut` is called with a
    change that may shut a replica, `sync` after any other. Belongs to one event loop.
    """

    def __init__(
        self,
        model: str | None,
        least_s: float,
        clock: Clock,
        *,
        sync: Callable[[Member], None],
        note_shut: Callable[[Member, Callable[[], None]], None],
    ) -> None:
        self._model = model
        self._least_s = least_s
        self._clock = clock
        self._sync = sync
        self._note_shut = note_shut
        self._judging: dict[Member, asyncio.Task[None]] = {}

    async def close(self) -> None:
        tasks = list(self._judging.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def fault(self, member: Member) -> str:
        """Why the replica does not answer; empty if it does."""
        model = self._model or next((model.name for model in member.models), "")
        try:
            await member.replica.probe(model, max(self._least_s, member.progress.longest_wait_s))
        except EngineError as error:
            return str(error)
        return ""

    async def reopen(self, member: Member) -> None:
        """Open a shut replica again if it answers."""
        why = await self.fault(member)
        now_s = self._clock.monotonic_s()
        if why:
            member.health.shut(why, now_s)
        else:
            member.health.probe_passed(now_s)
            log.info("replica %s is tried again", member.url)

    def judge(self, member: Member) -> None:
        """Start to find out whether failures there are the replica's fault; returns at once."""
        if member not in self._judging:
            task = self._judging[member] = asyncio.get_running_loop().create_task(self._judge(member))
            task.add_done_callback(lambda _: self._judging.pop(member, None))

    async def _judge(self, member: Member) -> None:
        wait_s = member.acquitted_s + PAUSE_S - self._clock.monotonic_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        accused = member.health.accused
        if accused is None:
            await self._check_limit(member)
            return
        release: asyncio.TimerHandle | None = None
        if not accused.shuts and not member.held:
            # It may be full: more requests would only be refused.
            member.held = True
            release = asyncio.get_running_loop().call_later(HOLD_S, self._release, member)
            self._sync(member)
        why = await self.fault(member)
        now_s = self._clock.monotonic_s()
        if release is not None:
            release.cancel()
        member.held = False
        if why:
            self._note_shut(member, lambda: member.convict(now_s))
            return
        log.warning("replica %s answers a probe, though requests failed there: %s", member.url, accused.why)
        member.acquit(now_s)
        self._sync(member)

    async def _check_limit(self, member: Member) -> None:
        """Find out whether the number of requests was the reason for refusals: probes are refused then, too.

        One that passes may just have met a free place.
        """
        refusals = member.refusals
        while refusals.probes < PROOF and member.throttled and member.refusals is refusals:
            if await self.fault(member):
                refusals.checked = True
                return
            refusals.probes += 1
        if refusals.probes == PROOF and member.refusals is refusals:
            log.warning("replica %s answers probes, though it refuses requests", member.url)
            member.excuse(self._clock.monotonic_s())
            self._sync(member)

    def _release(self, member: Member) -> None:
        member.held = False
        self._sync(member)
