"""Keeps a fleet's replicas up to date: who joins and leaves, their health and their reports."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing

from forebay.clock import Clock
from forebay.engine.failures import Redactor
from forebay.engine.replica import Replica
from forebay.errors import BadRequest, EngineError, ModelNotFound, SettingError, Unauthorized
from forebay.fleet.cache_events import CacheWatch
from forebay.fleet.cache_subscriber import CacheSubscriber, cache_endpoint
from forebay.fleet.config import FleetConfig
from forebay.fleet.member import Member
from forebay.fleet.probes import Probes
from forebay.fleet.served import ServedModels, names, serves
from forebay.fleet.stalls import StallDetector
from forebay.fleet.state import Fleet, ReplicaLimits

log = logging.getLogger(__name__)

UNKNOWN = (BadRequest, ModelNotFound, Unauthorized)
"""How a server answers that does not know a route."""
LIST_PAUSE_S = 5.0
RARELY_S = 600.0
"""The longest time until a server is asked again what it did not know; the time doubles from `check_s` on."""
Connect = Callable[[str], Replica]
"""Opens the replica at a URL, on the running event loop."""


class Question:
    """When to ask a replica again what it may not know, with backoff to spare the server."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._wait_s = every_s
        self.due_s = -math.inf

    def answered(self, now_s: float, *, known: bool) -> None:
        self._wait_s = self._every_s if known else min(2 * self._wait_s, RARELY_S)
        self.due_s = now_s + (0.0 if known else self._wait_s)


class Membership:
    """The replicas of a fleet by URL, each watched by its own task. Belongs to one event loop.

    `changed` is called when a replica may get requests again.
    """

    def __init__(
        self,
        config: FleetConfig,
        fleet: Fleet,
        api_key: str | None,
        clock: Clock,
        changed: Callable[[], None],
        *,
        connect: Connect,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._connect = connect
        self._quote = Redactor(api_key)
        self._clock = clock
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._list_task: asyncio.Task[None] | None = None
        self.members: dict[str, Member] = {}
        self.rows: dict[int, Member] = {}
        self.fault = ""
        """Why the list cannot be read now; empty if it can."""
        self.listing: tuple[str, ...] = ()
        """The current list."""
        self.looked = asyncio.Event()
        """Set with every check of a member; whoever waits for it clears it."""
        self.served = ServedModels(config.model, clock, self.rows, self.members, self._models_changed)
        self._subscriber = None if config.kv_events is None else CacheSubscriber()
        self._probes = Probes(
            config.model, config.check_timeout_s, clock, sync=self.sync, note_shut=self._note_shut
        )
        self.listed = False
        """Whether the list was ever read."""
        self.stalls = StallDetector(self.rows, fleet, clock, config.stall_s, sync=self.sync)

    def start(self) -> None:
        self._list_task = asyncio.get_running_loop().create_task(self._watch_list())

    async def close(self) -> None:
        tasks = [*self._tasks.values()] + ([self._list_task] if self._list_task else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.served.close()
        await self._probes.close()
        for member in [*self.members.values(), *self.rows.values()]:
            await member.replica.close()

    def usable(self) -> int:
        """How many replicas may get a request, now or when they have fewer."""
        return sum(m.health.state != "shut" and not m.fault and not m.leaving for m in self.rows.values())

    def in_flight(self) -> int:
        """How many requests are at replicas."""
        return sum(len(member.leases) for member in self.rows.values())

    def works(self, model: str | None = None) -> bool:
        """Whether a replica answers requests for `model` or is being started for them."""
        awaited = self._config.scaled and not self.members
        return awaited or any(member.works() and serves(member, model) for member in self.rows.values())

    def time_counts(self) -> bool:
        """Whether waiting counts against deadlines: no replica works. If the list is empty, one is to be
        started."""
        return not self.works() and not (self.listed and not self.members)

    def only(self, row: int) -> bool:
        """Whether no other replica may get what is sent to this one."""
        now_s = self._clock.monotonic_s()
        return not any(member.open(now_s) for other, member in self.rows.items() if other != row)

    def why_none(self) -> str:
        """The problem of each replica, in one line."""
        said = [
            f"{url}: {member.why or member.health.why or 'it is full'}"
            for url, member in list(self.members.items())[:8]
        ]
        more = f"; and {len(self.members) - 8} more" if len(self.members) > 8 else ""
        none = "none is up at present" if self.listed else "the list was not read yet"
        return "; ".join(said) + more if said else self.fault or none

    def sync(self, member: Member) -> None:
        """Update in the fleet whether the replica may get requests, and how many."""
        row = member.row
        if row is None:
            return
        now_s = self._clock.monotonic_s()
        open = member.open(now_s)
        if member.health.accused is not None or member.throttled:
            self._probes.judge(member)
        if now_s < member.paused_until_s != member.wakes_s:
            member.wakes_s = member.paused_until_s
            asyncio.get_running_loop().call_later(member.wakes_s - now_s, self.sync, member)
        self._fleet.limit[row] = member.health.limit + member.older
        if bool(self._fleet.available[row]) != open:
            self._fleet.set_available(row, open)
            if open:
                self._changed()
        if member.leaving and not member.leases:
            self._gone(member)

    def forget_evicted(self) -> None:
        """Forget prefix blocks that replicas have evicted."""
        now_s = self._clock.monotonic_s()
        for row, member in self.rows.items():
            if member.cache is not None:
                gone = member.cache.evicted((lease.blocks for lease in member.leases), now_s)
                self._fleet.index.forget(row, gone)

    async def _watch_list(self) -> None:
        while True:
            try:
                await self._follow_list()
            except Exception as error:
                # Otherwise the fleet would never change again.
                log.exception("the list of replicas; the last list of %d stays", len(self.members))
                self.fault = f"the list of replicas: {type(error).__name__}: {error}"
                self.looked.set()
                await asyncio.sleep(LIST_PAUSE_S)
            else:
                return

    async def _follow_list(self) -> None:
        async with aclosing(self._config.replicas.updates()) as updates:
            async for found in updates:
                if isinstance(found, SettingError):
                    if str(found) != self.fault:
                        log.warning("%s; the last list of %d replicas stays", found, len(self.members))
                    self.fault = str(found)
                else:
                    self.fault = ""
                    self._replace(found)
                self.looked.set()

    def _replace(self, urls: tuple[str, ...]) -> None:
        wanted = set(urls)
        for url in [url for url in self.members if url not in wanted]:
            member = self.members.pop(url)
            self._tasks.pop(url).cancel()
            if f"follow {url}" in self._tasks:
                self._tasks.pop(f"follow {url}").cancel()
            member.leaving = True
            log.info("replica %s leaves with %d requests in flight", url, len(member.leases))
            self.sync(member)
            if member.row is None:
                self._close(member)
        self.listing = urls
        newcomers, self.listed = self.listed, True
        for url in urls:
            if url not in self.members:
                config = self._config
                member = self.members[url] = Member(
                    url,
                    self._connect(url),
                    config.health,
                    capacity=config.capacity,
                    most_s=config.deadline_s / 2,
                )
                if newcomers:
                    member.health.start_slowly()
                self._tasks[url] = asyncio.get_running_loop().create_task(self._watch(member))
                self._follow(member)

    def _follow(self, member: Member) -> None:
        """Subscribe to its KV-cache events."""
        if self._subscriber is None or self._config.kv_events is None:
            return
        try:
            endpoint = cache_endpoint(self._config.kv_events, member.url)
        except SettingError as error:
            log.warning("%s; its own events are not heard", error)
            return
        cache = member.cache = CacheWatch(member.url)

        def heard(frames: list[bytes]) -> None:
            if cache.heard(frames, self._clock.monotonic_s()) and member.row is not None:
                self._fleet.restarted(member.row)

        task = self._subscriber.follow(endpoint, heard)
        self._tasks[f"follow {member.url}"] = asyncio.get_running_loop().create_task(task)

    def _gone(self, member: Member) -> None:
        row = member.row
        if row is not None and self.rows.get(row) is member:
            del self.rows[row]
            member.row = None
            self.served.moved(member)
            self._fleet.remove(row)
            self._close(member)

    def _close(self, member: Member) -> None:
        task = asyncio.get_running_loop().create_task(member.replica.close())
        self._tasks[f"close {member.url}"] = task
        task.add_done_callback(lambda _: self._tasks.pop(f"close {member.url}", None))

    async def _watch(self, member: Member) -> None:
        health, metrics = (Question(self._config.check_s) for _ in range(2))
        while True:
            try:
                await self._look(member, health, metrics)
            except Exception:
                # A defect here must not leave the replica unwatched.
                log.exception("a look at replica %s failed", member.url)
            member.asked = True
            self.looked.set()
            await asyncio.sleep(self._config.check_s)

    async def _look(self, member: Member, health: Question, metrics: Question) -> None:
        timeout_s = self._config.check_timeout_s
        began_s = self._clock.monotonic_s()
        try:
            if began_s >= health.due_s:
                known = await member.replica.check_health(timeout_s)
                health.answered(began_s, known=known)
            if member.doubtful:
                await self._ask(member)
            elif self.served.is_due(member):
                await self._list_again(member)
        except EngineError as error:
            now_s, why = self._clock.monotonic_s(), str(error)
            if member.row is None:
                member.fault = why
            self._note_shut(member, lambda: member.health.check_failed(why, began_s, now_s))
            # It may come back restarted, and serve something else.
            member.doubtful = member.doubtful or member.health.state == "shut"
            self.sync(member)
            return
        member.health.check_passed()
        if member.row is not None and member.health.due(self._clock.monotonic_s()):
            await self._probes.reopen(member)
        self.sync(member)
        if began_s < metrics.due_s:
            return
        try:
            load, counters = await member.replica.fetch_metrics(timeout_s)
        except EngineError as error:
            # Our own counts remain.
            metrics.answered(began_s, known=not isinstance(error, UNKNOWN))
            return
        metrics.answered(began_s, known=True)
        member.heard(self._fleet, load, counters, self._clock.monotonic_s())
        self._changed()

    async def accepts(self, row: int) -> bool:
        """Whether a replica answers a probe; if so, a 401 or 403 was due to the request."""
        member = self.rows.get(row)
        return member is not None and not await self._probes.fault(member)

    async def _list_again(self, member: Member) -> None:
        try:
            await self.served.fetch(member, self._config.check_timeout_s)
        except EngineError as error:
            log.debug("replica %s keeps its list of models: %s", member.url, error)
        else:
            member.fault = self._fault_of(member)
            self.sync(member)

    def _fault_of(self, member: Member) -> str:
        """Why a replica with these models gets no requests; empty if it may."""
        listed, wanted = names(member.models), self._config.model
        if wanted in listed or (wanted is None and listed):
            return ""
        served = self._quote(", ".join(sorted(listed))) or "nothing"
        fault = f"it serves {served}, not {self._quote(wanted or '') or 'a model'}"
        if fault != member.fault:
            log.warning("replica %s gets no requests: %s", member.url, fault)
        return fault

    def _models_changed(self, row: int) -> None:
        # Requests that wait for a new model may go there.
        self._fleet.changed.add(row)
        self._changed()

    async def _ask(self, member: Member) -> None:
        """Ask what it serves; it joins, or stays out with the reason."""
        timeout_s = self._config.check_timeout_s
        await self.served.fetch(member, timeout_s)
        fault = self._fault_of(member)
        if fault:
            member.fault = fault
            return
        if member.row is None:
            await self._join(member, timeout_s)
        else:
            self._fleet.restarted(member.row)
            if member.cache is not None:
                member.cache.restarted()
        member.fault = ""
        member.doubtful = False

    async def _join(self, member: Member, timeout_s: float) -> None:
        try:
            tokens = await member.replica.fetch_cache_tokens(timeout_s)
        except EngineError:
            tokens = None
        if member.leaving:
            return
        row = member.row = self._fleet.add(ReplicaLimits(member.url, math.inf if tokens is None else tokens))
        if tokens is not None:
            member.running.shows()
        # Unavailable until `sync`.
        self._fleet.set_available(row, False)
        member.tell(self._fleet)
        self.rows[row] = member
        self.served.moved(member)
        log.info("replica %s joins", member.url)

    def _note_shut(self, member: Member, change: Callable[[], None]) -> None:
        before = member.health.state
        change()
        if member.health.state == "shut" != before:
            log.warning("replica %s gets no requests for now: %s", member.url, member.health.why)
        self.sync(member)
