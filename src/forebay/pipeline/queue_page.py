"""Serves a job's backlog in its topics, counted next to the job manager, to the subtasks that scale by it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from forebay.errors import LaunchError
from forebay.fleet.autoscale.topic_queue import TopicBacklog, encode_backlog
from forebay.flink.job import RunningJob
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.watch import LastCount, counted

log = logging.getLogger("forebay")

LOOK_S = 3.0
TRY_S = 3.0
END_S = 1.0
ASKED_S = 3.0
MOST_BYTES = 8192
MOST_AT_ONCE = 64
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


@contextmanager
def queue_told(
    job: RunningJob,
    waiting: LastCount,
    port: int,
    *,
    one_each: bool,
    looked: Callable[[Snapshot], object],
) -> Iterator[None]:
    """Serve the backlog of `job` from `waiting` at `port` while the block runs.

    `one_each`: each event gives one result or dead letter. Each snapshot is passed to `looked`, on a thread
    that ends with the block or a few seconds later. Errors do not affect the job: the last count stays, and
    ages.
    """
    looks = _Looks(job, waiting, one_each, looked)
    with page_served(port, looks), looks.renewed():
        yield


@dataclass(slots=True)
class _Looks:
    """The newest snapshot, from which the tokens in the backlog are estimated."""

    job: RunningJob
    waiting: LastCount
    one_each: bool
    looked: Callable[[Snapshot], object]
    now: Snapshot = field(default_factory=lambda: Snapshot(0.0, "CREATED"))

    def __call__(self) -> TopicBacklog | None:
        return self.waiting.backlog(self.now)

    @contextmanager
    def renewed(self) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            while not ended.is_set():
                try:
                    self.now = counted(self.now, self.job.counts(), one_each=self.one_each)
                    self.looked(self.now)
                except LaunchError:
                    pass
                except Exception:
                    # If this thread ended, the last count would stay forever.
                    log.exception("unexpected error reading the job's counts; retrying")
                ended.wait(LOOK_S)

        thread = threading.Thread(target=look, name="looks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(END_S)


@contextmanager
def page_served(port: int, backlog: Callable[[], TopicBacklog | None]) -> Iterator[None]:
    """Serve `backlog` at `port` of all addresses while the block runs, on a thread.

    If the port is taken, logs an error and retries every few seconds.
    """
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
        server = await asyncio.start_server(_Page(backlog).answer, sock=listening, limit=MOST_BYTES)
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
    """Answers every request with the backlog; slow or excess requests are dropped."""

    backlog: Callable[[], TopicBacklog | None]
    open: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if self.open <= MOST_AT_ONCE:
                await asyncio.wait_for(self._answer(reader, writer), ASKED_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = encode_backlog(self.backlog())
        writer.write(HEAD % len(body) + body)
        await writer.drain()
