"""Counts a job's backlog in its topics, estimates its cost, and serves it to subtasks that scale by it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from forebay.clock import Clock, SystemClock
from forebay.connectors.kafka.admin import KafkaRefused, Place, kafka_admin
from forebay.connectors.kafka.lag import LagProbe, is_place
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import LaunchError
from forebay.fleet.autoscale.meter import TopicBacklog, encode_backlog
from forebay.flink.job import RunningJob
from forebay.pipeline.snapshot import Snapshot, counted
from forebay.pipeline.spec import PipelineSpec

log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class Spent:
    records: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def estimate(records: int, spent: Spent, age_s: float = 0.0) -> TopicBacklog:
    """Return the expected cost of `records`, from the mean so far, failed calls included."""
    if spent.records <= 0:
        return TopicBacklog(records, None, None, age_s)
    return TopicBacklog(
        records,
        round(records * spent.prompt_tokens / spent.records),
        round(records * spent.completion_tokens / spent.records),
        age_s,
    )


class SpentInAll:
    def __init__(self) -> None:
        self._before = self._sum = Spent()

    def add(self, read: int, prompt_tokens: int, completion_tokens: int) -> Spent:
        before, total = self._before, self._sum
        again = prompt_tokens < before.prompt_tokens or completion_tokens < before.completion_tokens
        since = Spent() if again else before
        self._before = Spent(read, prompt_tokens, completion_tokens)
        self._sum = Spent(
            read,
            total.prompt_tokens + prompt_tokens - since.prompt_tokens,
            total.completion_tokens + completion_tokens - since.completion_tokens,
        )
        return self._sum if self._sum.prompt_tokens else Spent()


COUNT_EVERY_S = 3.0


def answered_records(now: Snapshot) -> int:
    return now.results + now.dead_letters


def taken_records(now: Snapshot) -> int:
    return max(now.accepted - now.in_flight - now.pending, 0) if now.prompt_tokens else 0


class LastCount:
    """The newest backlog count, written by one thread and read by another.

    `done`: records that a snapshot's tokens were spent on; 0 if unknown. None: the application chooses its
    own requests, so the cost is per record read.
    """

    def __init__(self, clock: Clock, done: Callable[[Snapshot], int] | None = answered_records) -> None:
        self._clock = clock
        self._done = done
        self._counted: tuple[int, int, float] | None = None
        self._spent = Spent()
        self._in_all = SpentInAll()
        self.wanted = True

    def set(self, records: int, read: int = 0) -> None:
        self._counted = (records, read, self._clock.monotonic_s())

    def backlog(self, now: Snapshot) -> TopicBacklog | None:
        self.wanted = True
        if self._done is not None and (done := self._done(now)):
            self._spent = Spent(done, now.prompt_tokens, now.completion_tokens)
        if self._counted is None:
            return None
        records, read, at_s = self._counted
        if self._done is None:
            self._spent = self._in_all.add(read, now.prompt_tokens, now.completion_tokens)
        return estimate(records, self._spent, self._clock.monotonic_s() - at_s)


@contextmanager
def lag_watched(
    spec: PipelineSpec,
    job: RunningJob,
    *,
    restored: bool,
    before: Sequence[Place] = (),
    if_read: bool = False,
    clock: Clock | None = None,
) -> Iterator[LastCount]:
    """Count the backlog of `job` every three seconds, if its source is Kafka.

    If that fails, the last count ages. `if_read`: only if the last count was read.
    """
    application = spec.application
    done: Callable[[Snapshot], int] | None = answered_records
    if application is not None:
        done = None if application.own_clock else taken_records
    last, ended = LastCount(clock or SystemClock(), done), threading.Event()
    if not isinstance(spec.source, KafkaSource):
        yield last
        return
    source = spec.source.topics_of(spec)
    probe = LagProbe(source, lambda: job.highest(is_place), restored=restored, before=before)

    def count() -> None:
        with kafka_admin(source.cluster) as admin:
            while not ended.is_set():
                if last.wanted or not if_read:
                    last.wanted = False
                    last.set(probe.count(admin), probe.read)
                ended.wait(COUNT_EVERY_S)

    with _repeated("counting the backlog", count, ended, COUNT_EVERY_S):
        yield last


@contextmanager
def _repeated(what: str, step: Callable[[], None], ended: threading.Event, every_s: float) -> Iterator[None]:
    def repeat() -> None:
        while not ended.is_set():
            try:
                step()
            except (LaunchError, KafkaRefused):
                pass
            except Exception:
                log.exception("unexpected error %s; retrying", what)
            ended.wait(every_s)

    thread = threading.Thread(target=repeat, name=what, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_S)


LOOK_S = 3.0
TRY_S = 3.0
END_S = 1.0
ASKED_S = 3.0
MAX_BYTES = 8192
MAX_AT_ONCE = 64
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


@contextmanager
def backlog_served(
    job: RunningJob, waiting: LastCount, port: int, *, one_each: bool, looked: Callable[[Snapshot], object]
) -> Iterator[None]:
    now = Snapshot(0.0, "CREATED")

    def look() -> None:
        nonlocal now
        now = counted(now, job.counts(), one_each=one_each)
        looked(now)

    repeated = _repeated("reading the job's counts", look, threading.Event(), LOOK_S)
    with page_served(port, lambda: waiting.backlog(now)), repeated:
        yield


@contextmanager
def page_served(port: int, backlog: Callable[[], TopicBacklog | None]) -> Iterator[None]:
    """Serves on a thread. If the port is taken, it retries every few seconds."""
    found = _listening(port)
    if isinstance(found, OSError):
        log.error(
            "cannot open port %d, which serves the backlog: %s; replicas scale by the job's own requests",
            port,
            found,
        )
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        listening, ended = found, asyncio.Event()
        begun.set_result((asyncio.get_running_loop(), ended))
        while isinstance(listening, OSError):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), TRY_S)
                return
            listening = _listening(port)
            if not isinstance(listening, OSError):
                log.info("port %d is open now", port)
        server = await asyncio.start_server(_Page(backlog).answer, sock=listening, limit=MAX_BYTES)
        await ended.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="queue-page", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop, ended = begun.result()
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def _listening(port: int) -> socket.socket | OSError:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        return error


@dataclass(slots=True)
class _Page:
    """Beyond `MAX_AT_ONCE` open connections it drops the oldest, so slow clients do not block others."""

    backlog: Callable[[], TopicBacklog | None]
    open: dict[asyncio.Task[None] | None, None] = field(default_factory=dict)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.open[task] = None
        if len(self.open) > MAX_AT_ONCE:
            oldest = next(iter(self.open))
            del self.open[oldest]
            assert oldest is not None
            oldest.cancel()
        try:
            await asyncio.wait_for(self._answer(reader, writer), ASKED_S)
        except (
            *(OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError),
            asyncio.CancelledError,
        ):
            pass
        finally:
            self.open.pop(task, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = encode_backlog(self.backlog())
        writer.write(HEAD % len(body) + body)
        await writer.drain()
