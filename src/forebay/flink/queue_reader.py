"""Reads how much waits in a job's topics from the process that counts it, for a subtask that decides by
itself."""

from __future__ import annotations

import asyncio
import logging

from forebay.clients.http.readers import WholeAnswer
from forebay.clients.http.server import HttpServer
from forebay.clock import Clock
from forebay.engine.failures import Redactor
from forebay.errors import EngineError, SettingError
from forebay.fleet.autoscale.meter import TopicQueue, decode_backlog

log = logging.getLogger(__name__)

EVERY_S = 3.0
TIMEOUT_S = 3.0
MAX_BYTES = 4096
PATIENCE_S = 60.0


class QueueReader:
    """Reads the backlog at `url` every few seconds into `queue`, until `close`. Belongs to the event loop on
    which it was made. Failures change nothing; after `PATIENCE_S` they are logged."""

    def __init__(self, url: str, queue: TopicQueue, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._url = url
        self._queue = queue
        self._clock = clock
        self._every_s = every_s
        self._heard_s = clock.monotonic_s()
        self._told = False
        self._task = asyncio.get_running_loop().create_task(self._read_on())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read_on(self) -> None:
        server = HttpServer(self._url, headers={"User-Agent": "forebay"}, quote=Redactor())
        try:
            while True:
                problem = await self._read(server)
                now_s = self._clock.monotonic_s()
                if not problem:
                    self._heard_s, self._told = now_s, False
                elif not self._told and now_s - self._heard_s >= PATIENCE_S:
                    self._told = True
                    log.warning(
                        "the backlog in topics is unknown; scaling uses only the job's own: %s",
                        problem,
                    )
                await asyncio.sleep(self._every_s)
        finally:
            await server.close()

    async def _read(self, server: HttpServer) -> str:
        """Returns why it failed, or an empty text."""
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
