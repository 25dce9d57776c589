"""Keeps a fleet's replicas up to date: who joins and leaves, their health and their reports."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing

from forebay.clock import Clock
from forebay.engine.failures import Redactor
from forebay.engine.replica import ReplicaConnection
from forebay.errors import (
    BadRequest,
    EngineError,
    ModelNotFound,
    ProtocolViolation,
    SettingError,
    Unauthorized,
)
from forebay.fleet.cache_events import CacheWatch
from forebay.fleet.cache_subscriber import CacheSubscriber, cache_endpoint
from forebay.fleet.config import FleetConfig
from forebay.fleet.lease import MISPLACED
from forebay.fleet.probes import Probes, StallDetector
from forebay.fleet.replica import Replica
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.served import ServedModels, names, serves

log = logging.getLogger(__name__)

UNKNOWN = (BadRequest, ModelNotFound, Unauthorized)
LIST_PAUSE_S = 5.0
RARELY_S = 600.0
"""The longest time until a server is asked again about a route it did not support; doubles from `check_s` on.
"""
Connect = Callable[[str], ReplicaConnection]


class Question:
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
        fleet: ReplicaTable,
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
        self._fit_checks: dict[Replica, asyncio.Task[None]] = {}
        self.replicas: dict[str, Replica] = {}
        self.rows: dict[int, Replica] = {}
        self.fault = ""
        self.listing: tuple[str, ...] = ()
        self.check_ended = asyncio.Event()
        self.served = ServedModels(config.model, clock, self.rows, self.replicas, self._models_changed)
        self._subscriber = None if config.kv_events is None else CacheSubscriber()
        self._probes = Probes(
            config.model, config.check_timeout_s, clock, sync=self.sync, note_shut=self._note_shut
        )
        self.listed = False
        self.stalls = StallDetector(self.rows, clock, config.stall_s, sync=self.sync)

    def start(self) -> None:
        self._list_task = asyncio.get_running_loop().create_task(self._watch_list())

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._fit_checks.values()]
        tasks += [self._list_task] if self._list_task else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.served.close()
        await self._probes.close()
        for replica in [*self.replicas.values(), *self.rows.values()]:
            await replica.connection.close()

    def usable(self) -> int:
        return sum(replica.usable for replica in self.rows.values())

    def in_flight(self) -> int:
        return sum(len(replica.leases) for replica in self.rows.values())

    def works(self, model: str | None = None) -> bool:
        awaited = self._config.scaled and not self.replicas
        return awaited or any(replica.works and serves(replica, model) for replica in self.rows.values())

    def time_counts(self) -> bool:
        """Whether waiting counts against deadlines: no replica works, and none is about to be started."""
        return not self.works() and not (self.listed and not self.replicas)

    def only(self, row: int) -> bool:
        now_s = self._clock.monotonic_s()
        return not any(replica.open(now_s) for other, replica in self.rows.items() if other != row)

    def why_none(self) -> str:
        reasons = [f"{url}: {replica.trouble}" for url, replica in list(self.replicas.items())[:8]]
        more = f"; and {len(self.replicas) - 8} more" if len(self.replicas) > 8 else ""
        none = "none is up at present" if self.listed else "the list was not read yet"
        return "; ".join(reasons) + more if reasons else self.fault or none

    def sync(self, replica: Replica) -> None:
        row = replica.row
        if row is None:
            return
        now_s = self._clock.monotonic_s()
        if replica.health.suspicion is not None or replica.throttled:
            self._probes.judge(replica)
        if now_s < replica.paused_until_s != replica.wakes_s:
            replica.wakes_s = replica.paused_until_s
            asyncio.get_running_loop().call_later(replica.wakes_s - now_s, self.sync, replica)
        if replica.update_available(now_s):
            self._changed()
        if replica.leaving and not replica.leases:
            self._gone(replica)

    def forget_evicted(self) -> None:
        now_s = self._clock.monotonic_s()
        for replica in self.rows.values():
            replica.forget_evicted(now_s)

    async def _watch_list(self) -> None:
        while True:
            try:
                await self._follow_list()
            except Exception as error:
                # Otherwise the fleet would never change again.
                log.exception("the list of replicas; the last list of %d stays", len(self.replicas))
                self.fault = f"the list of replicas: {type(error).__name__}: {error}"
                self.check_ended.set()
                await asyncio.sleep(LIST_PAUSE_S)
            else:
                return

    async def _follow_list(self) -> None:
        async with aclosing(self._config.replicas.updates()) as updates:
            async for found in updates:
                if isinstance(found, SettingError):
                    if str(found) != self.fault:
                        log.warning("%s; the last list of %d replicas stays", found, len(self.replicas))
                    self.fault = str(found)
                else:
                    self.fault = ""
                    self._replace(found)
                self.check_ended.set()

    def _replace(self, urls: tuple[str, ...]) -> None:
        wanted = set(urls)
        for url in [url for url in self.replicas if url not in wanted]:
            replica = self.replicas.pop(url)
            self._tasks.pop(url).cancel()
            if f"follow {url}" in self._tasks:
                self._tasks.pop(f"follow {url}").cancel()
            replica.leaving = True
            log.info("replica %s leaves with %d requests in flight", url, len(replica.leases))
            self.sync(replica)
            if replica.row is None:
                self._close(replica)
        self.listing = urls
        newcomers, self.listed = self.listed, True
        for url in urls:
            if url not in self.replicas:
                config = self._config
                replica = self.replicas[url] = Replica(
                    url,
                    self._connect(url),
                    config.health,
                    self._fleet,
                    capacity=config.capacity,
                    most_s=config.deadline_s / 2,
                )
                if newcomers:
                    replica.health.start_slowly()
                self._tasks[url] = asyncio.get_running_loop().create_task(self._watch(replica))
                self._follow(replica)

    def _follow(self, replica: Replica) -> None:
        if self._subscriber is None or self._config.kv_events is None:
            return
        try:
            endpoint = cache_endpoint(self._config.kv_events, replica.url)
        except SettingError as error:
            log.warning("%s; its KV-cache events are not received", error)
            return
        cache = replica.cache = CacheWatch(replica.url)

        def receive(frames: list[bytes]) -> None:
            if cache.receive(frames, self._clock.monotonic_s()) and replica.row is not None:
                self._fleet.restarted(replica.row)

        task = self._subscriber.follow(endpoint, receive)
        self._tasks[f"follow {replica.url}"] = asyncio.get_running_loop().create_task(task)

    def _gone(self, replica: Replica) -> None:
        row = replica.row
        if row is not None and self.rows.get(row) is replica:
            del self.rows[row]
            replica.row = None
            self.served.note_change(replica)
            self._fleet.remove(row)
            self._close(replica)

    def _close(self, replica: Replica) -> None:
        task = asyncio.get_running_loop().create_task(replica.connection.close())
        self._tasks[f"close {replica.url}"] = task
        task.add_done_callback(lambda _: self._tasks.pop(f"close {replica.url}", None))

    async def _watch(self, replica: Replica) -> None:
        health, metrics = (Question(self._config.check_s) for _ in range(2))
        while True:
            try:
                await self._look(replica, health, metrics)
            except Exception:
                # A defect here must not leave the replica unwatched.
                log.exception("a look at replica %s failed", replica.url)
            replica.checked = True
            self.check_ended.set()
            await asyncio.sleep(self._config.check_s)

    async def _look(self, replica: Replica, health: Question, metrics: Question) -> None:
        timeout_s = self._config.check_timeout_s
        began_s = self._clock.monotonic_s()
        try:
            if began_s >= health.due_s:
                known = await replica.connection.check_health(timeout_s)
                health.answered(began_s, known=known)
            if replica.must_describe:
                await self._ask(replica)
            elif self.served.is_due(replica):
                await self._list_again(replica)
        except EngineError as error:
            now_s, why = self._clock.monotonic_s(), str(error)
            self._note_shut(replica, lambda: replica.check_failed(why, began_s, now_s))
            self.sync(replica)
            return
        replica.health.check_passed()
        if replica.row is not None and replica.health.due(self._clock.monotonic_s()):
            await self._probes.reopen(replica)
        self.sync(replica)
        if began_s < metrics.due_s:
            return
        try:
            load, counters = await replica.connection.fetch_metrics(timeout_s)
        except EngineError as error:
            # Our own counts remain.
            metrics.answered(began_s, known=not isinstance(error, UNKNOWN))
            return
        metrics.answered(began_s, known=True)
        replica.report(load, counters, self._clock.monotonic_s())
        self._changed()

    async def accepts(self, row: int) -> bool:
        """Whether a replica answers a probe; if so, a 401 or 403 was due to the request."""
        replica = self.rows.get(row)
        return replica is not None and not await self._probes.fault(replica)

    async def fits(self, row: int, within_s: float) -> bool:
        replica = self.rows.get(row)
        if replica is None:
            return False
        if replica not in self._fit_checks:
            # Many requests may fail at once.
            task = asyncio.get_running_loop().create_task(self._check_fit(replica))
            self._fit_checks[replica] = task
            task.add_done_callback(lambda _: self._fit_checks.pop(replica, None))
        timeout_s = None if math.isinf(within_s) else max(0.0, within_s)
        await asyncio.wait({self._fit_checks[replica]}, timeout=timeout_s)
        return replica.usable

    async def _check_fit(self, replica: Replica) -> None:
        await self._list_again(replica)
        error = None if replica.fault else await self._probes.error(replica)
        # A full replica, for instance, may fit.
        if isinstance(error, (*MISPLACED, ProtocolViolation)) and replica.usable:
            why = str(error)
            self._note_shut(replica, lambda: replica.health.shut(why, self._clock.monotonic_s()))
        replica.must_describe = replica.must_describe or not replica.usable

    async def _list_again(self, replica: Replica) -> None:
        try:
            await self.served.fetch(replica, self._config.check_timeout_s)
        except EngineError as error:
            log.debug("replica %s keeps its list of models: %s", replica.url, error)
        else:
            replica.fault = self._fault_of(replica)
            self.sync(replica)

    def _fault_of(self, replica: Replica) -> str:
        listed, wanted = names(replica.models), self._config.model
        if wanted in listed or (wanted is None and listed):
            return ""
        served = self._quote(", ".join(sorted(listed))) or "nothing"
        fault = f"it serves {served}, not {self._quote(wanted or '') or 'a model'}"
        if fault != replica.fault:
            log.warning("replica %s gets no requests: %s", replica.url, fault)
        return fault

    def _models_changed(self, row: int) -> None:
        # Requests that wait for a new model may go there.
        self._fleet.changed.add(row)
        self._changed()

    async def _ask(self, replica: Replica) -> None:
        timeout_s = self._config.check_timeout_s
        await self.served.fetch(replica, timeout_s)
        fault = self._fault_of(replica)
        if fault:
            replica.fault = fault
            return
        if replica.row is None:
            await self._join(replica, timeout_s)
        else:
            replica.restarted()
        replica.fault, replica.must_describe = "", False

    async def _join(self, replica: Replica, timeout_s: float) -> None:
        try:
            tokens = await replica.connection.fetch_cache_tokens(timeout_s)
        except EngineError:
            tokens = None
        if replica.leaving:
            return
        row = self._fleet.add(ReplicaLimits(replica.url, math.inf if tokens is None else tokens))
        replica.join(row, reports_cache=tokens is not None)
        self.rows[row] = replica
        self.served.note_change(replica)
        log.info("replica %s joins", replica.url)

    def _note_shut(self, replica: Replica, change: Callable[[], None]) -> None:
        before = replica.health.state
        change()
        if replica.health.state == "shut" != before:
            log.warning("replica %s gets no requests for now: %s", replica.url, replica.health.why)
        self.sync(replica)
