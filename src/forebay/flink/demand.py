"""Reports a subtask's waiting work to the autoscaler."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
from pathlib import Path

from forebay.clients.http.readers import WholeAnswer
from forebay.clients.http.server import HttpServer
from forebay.clock import Clock
from forebay.engine.failures import Redactor
from forebay.errors import EngineError, SettingError
from forebay.fleet.autoscale.demand import StreamDemand, encode_demand, report_name
from forebay.fleet.autoscale.learned import KEEP_S, ClassMix, ScalingMemory
from forebay.fleet.autoscale.loop import PublishedReplicas, ScalingLoop, StepLog
from forebay.fleet.autoscale.meter import DemandMeter, DemandReport, TopicQueue, decode_backlog
from forebay.fleet.autoscale.settings import ScalingLink, holds_for, memory_of
from forebay.fleet.client import FleetClient
from forebay.fleet.disaggregated import TwoClients
from forebay.flink.metrics import ScalingGauges
from forebay.flink.request_handler import EventClasses
from forebay.flink.request_pool import Answer, Handler
from forebay.processes import pid_space
from forebay.records import KeyedEvent, Result
from forebay.stateful.turns import ProgramRequest

log = logging.getLogger(__name__)

REPORT_S = 1.0
Clients = FleetClient | TwoClients


def prompt_chars(item: KeyedEvent) -> int:
    if isinstance(item, ProgramRequest):
        return sum(len(message.content) for message in item.ask.messages)
    return len(item.event.raw)


class MeteredHandler:
    """Answers like `handler`, and reports waiting work each second. On one event loop, except `accept`.

    With a folder, the report is a file there. Without one, a scaling loop decides here for all subtasks,
    which are alike because events are spread by a hash.
    """

    def __init__(
        self,
        handler: Handler,
        client: Clients,
        link: ScalingLink,
        gauges: ScalingGauges,
        clock: Clock,
        *,
        model: str,
        classes: EventClasses | None = None,
    ) -> None:
        self._handler = handler
        self._client = client
        self._link = link
        self._gauges = gauges
        self._clock = clock
        self._default, self._classes = link.settings.classes[0], classes
        self._meter = DemandMeter(link.settings.answer_tokens)
        self._newest: DemandReport | None = None
        self._queue = TopicQueue(link.record_tokens)
        self._loop = self._loop_here() if link.folder is None else None
        self._memory = self._memory_for(model)
        self._kept_s = clock.monotonic_s()
        name = report_name(pid_space(), os.getpid(), secrets.token_hex(4))
        self._path = None if link.folder is None else Path(link.folder, name)
        # Also without requests: a draining replica waits until every subtask uses the new list.
        client.watch()
        queue_url = link.queue_url if link.folder is None else None
        self._reader = None if queue_url is None else QueueReader(queue_url, self._queue, clock)
        self._task = asyncio.get_running_loop().create_task(self._report_on())

    def accept(self, item: KeyedEvent, *, restored: bool) -> None:
        service = self._default if self._classes is None else self._classes.of(item)
        self._meter.accept(id(item), item.id, prompt_chars(item), item.read_ms, service, again=restored)

    async def answer(self, item: KeyedEvent) -> Answer:
        try:
            answer = await self._handler.answer(item)
        except BaseException:
            self._meter.finish(id(item))
            raise
        if isinstance(answer, Result) and not answer.journaled:
            usage = answer.usage
            self._meter.finish(id(item), usage.prompt_tokens, usage.completion_tokens)
        else:
            self._meter.finish(id(item))
        return answer

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._reader is not None:
            await self._reader.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        await self._handler.close()

    async def _report_on(self) -> None:
        while True:
            try:
                await self._report()
            except OSError as error:
                # Readers check its age.
                log.warning("the demand cannot be reported: %s", error)
            except Exception:
                log.exception("failed to report the demand")
            await asyncio.sleep(REPORT_S)

    async def _report(self) -> None:
        client, now_ms = self._client, self._clock.wall_ms()
        found = self._gauges.learned.take()
        for why in [] if found is None else self._memory.recall(found):
            log.warning("what scaling had learned is not used: %s", why)
        report = self._meter.report(
            now_ms,
            sent=client.sent,
            kv_usage=client.kv_usage,
            listing=client.listing,
            at_replicas=client.at_replicas(),
            usable=client.usable,
            full=client.full,
        )
        wanted = client.wanted
        if self._loop is not None and client.probed:
            # Before that, there seem to be no replicas, and none needed.
            self._newest = report.times(self._link.subtasks)
            self._loop.tick(self._clock.monotonic_s())
            wanted = self._gauges.wanted_replicas
        due_s = None if not report.waiting else (report.waiting[0].due_ms - now_ms) // 1000
        self._gauges.set(wanted, math.ceil(report.backlog_tokens), due_s)
        self._keep(now_ms)
        if self._path is not None:
            data = encode_demand(report)
            await asyncio.get_running_loop().run_in_executor(None, _replace, self._path, data)

    def _keep(self, now_ms: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._kept_s < KEEP_S:
            return
        self._kept_s = now_s
        data = self._memory.save(now_ms)
        if data is not None:
            self._gauges.learned.newest = data
            self._gauges.notify()

    def _memory_for(self, model: str) -> ScalingMemory:
        settings, lengths = self._link.settings, self._meter.lengths
        if self._loop is None:
            return ScalingMemory(holds_for(settings, model), {"lengths": lengths})
        parts = {"lengths": lengths, "replicas": self._loop.owner, "record cost": self._queue.cost}
        scaler = self._loop.scaler
        return memory_of(settings, model, parts, scaler.policy, scaler.speed)

    def _loop_here(self) -> ScalingLoop:
        settings, clock = self._link.settings, self._clock
        scaler, speed = settings.scaler()

        def ready() -> int:
            return self._client.usable

        demand = StreamDemand(
            lambda: {} if self._newest is None else {"": self._newest},
            clock.wall_ms,
            mix=ClassMix(settings.classes),
            speed=speed,
            ready=ready,
            queued=lambda: self._queue.waits(clock.monotonic_s()),
        )
        owner = PublishedReplicas(ready, self._gauges.publish, settings.timings.boot_s)
        return ScalingLoop(scaler, owner, demand, settings.timings.interval_s, on_step=StepLog(log))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.replace(path)


EVERY_S = 3.0
TIMEOUT_S = 3.0
MAX_BYTES = 4096
PATIENCE_S = 60.0


class QueueReader:
    def __init__(self, url: str, queue: TopicQueue, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._url = url
        self._queue = queue
        self._clock = clock
        self._every_s = every_s
        self._received_s = clock.monotonic_s()
        self._silence_reported = False
        self._task = asyncio.get_running_loop().create_task(self._read_on())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read_on(self) -> None:
        headers = {"Accept-Encoding": "identity", "User-Agent": "forebay"}
        server = HttpServer(self._url, headers=headers, quote=Redactor())
        try:
            while True:
                problem = await self._read(server)
                now_s = self._clock.monotonic_s()
                if not problem:
                    self._received_s, self._silence_reported = now_s, False
                elif not self._silence_reported and now_s - self._received_s >= PATIENCE_S:
                    self._silence_reported = True
                    log.warning(
                        "the backlog in topics is unknown; scaling uses only the job's own: %s", problem
                    )
                await asyncio.sleep(self._every_s)
        finally:
            await server.close()

    async def _read(self, server: HttpServer) -> str:
        answer = WholeAnswer(self._url, max_bytes=MAX_BYTES, max_error_bytes=0)
        try:
            await server.get("", answer, total_s=TIMEOUT_S)
            if answer.status != 200:
                return f"{self._url}: expected status 200, found {answer.status}"
            backlog = decode_backlog(bytes(answer.data))
        except EngineError as error:
            return str(error)
        except SettingError as error:
            return f"{self._url}: expected a backlog, found something else: {error}"
        if backlog is None:
            return f"{self._url}: the backlog is not known yet"
        self._queue.observe(backlog, self._clock.monotonic_s())
        return ""
