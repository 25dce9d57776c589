"""Reads large bodies in a process of its own: parsing one would hold up the answers of all other clients."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import IO, Any

import msgpack

from forebay.gateway.asked import Asked, read_asked
from forebay.gateway.refusal import Refusal, own_mistake

LOG = logging.getLogger("forebay.gateway")
LARGE_BYTES = 1 << 18
LARGE_CONTAINERS = 2000
"""Bodies above either are read in the other process: below, reading takes a few milliseconds."""
LENGTH_BYTES = 8
USUAL_S = 2e-9
"""Processor seconds a byte to read long texts and images; lists of numbers and short texts take ten times as
long, in the engine, too."""
REST, MAX_REST_S = 99.0, 5.0
"""So what a source's bodies take beyond that is at most a hundredth of the time."""
SLOW_S = 0.01
"""A body that takes this much longer is not read again for a prefill elsewhere."""
NICENESS = 10
"""The event loop goes first if there is one core for both."""


@dataclass(slots=True)
class SourceLine:
    """The bodies of one source, of which one is read at a time."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class BodyReader:
    """Reads bodies, small ones at once. The process for large ones starts with the first of them.

    One body is read at a time. Each source has at most one of its bodies in line, so that none waits for
    more than one of each other source. After one that is slow to read it pauses: the engine will parse it on
    its event loop. `environment`: of the process; it needs no secrets.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._free = asyncio.Lock()
        self._lines: dict[str, SourceLine] = {}

    async def read(self, source: str, path: str, body: bytes, **options: Any) -> Asked:
        """As `read_asked`."""
        if len(body) <= LARGE_BYTES and body.count(b"[") + body.count(b"{") <= LARGE_CONTAINERS:
            return read_asked(path, body, **options)
        line = self._lines.setdefault(source, SourceLine())
        line.waiting += 1
        try:
            await line.turn.acquire()
            try:
                await self._free.acquire()
            except BaseException:
                line.turn.release()
                raise
        except BaseException:
            self._leave(source, line)
            raise
        reading = asyncio.ensure_future(self._read_there(path, body, options))
        reading.add_done_callback(partial(self._done, source, line))
        # If the client hangs up, what has begun ends: another process would take longer to start.
        found, _ = await asyncio.shield(reading)
        if isinstance(found, Refusal):
            raise found
        return found

    def _done(
        self, source: str, line: SourceLine, reading: asyncio.Future[tuple[Asked | Refusal, float]]
    ) -> None:
        self._free.release()
        # An error is reported by the request, if it still waits.
        failed = reading.cancelled() or reading.exception() is not None
        rest_s = 0.0 if failed else reading.result()[1]
        asyncio.get_running_loop().call_later(rest_s, self._rested, source, line)

    def _rested(self, source: str, line: SourceLine) -> None:
        line.turn.release()
        self._leave(source, line)

    def _leave(self, source: str, line: SourceLine) -> None:
        line.waiting -= 1
        if not line.waiting:
            del self._lines[source]

    async def close(self) -> None:
        """Call it when no request is in flight; blocks until the process has ended."""
        async with self._free:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(ConnectionError):
                await process.communicate()

    async def _read_there(
        self, path: str, body: bytes, options: Mapping[str, Any]
    ) -> tuple[Asked | Refusal, float]:
        """The request or why it is refused, and for how many seconds its source pauses."""
        done = False
        try:
            if self._process is None:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "forebay.gateway.body_reader"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=None if self._environment is None else dict(self._environment),
                    # With -m Python loads code from the working directory, too.
                    cwd="/",
                    start_new_session=True,
                )
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            for piece in (msgpack.packb([path, dict(options)]), body):
                stdin.write(len(piece).to_bytes(LENGTH_BYTES, "big"))
                stdin.write(piece)
            await stdin.drain()
            head, found = [await _piece(stdout) for _ in range(2)]
            done = True
        except (OSError, asyncio.IncompleteReadError):
            LOG.exception("the process that reads large bodies has ended; the next one starts another")
            raise own_mistake() from None
        finally:
            if not done:
                # Cancelled in between: what it would answer next belongs to this body.
                await asyncio.shield(self._end())
        refused, values, took_s = msgpack.unpackb(head)
        rest_s = rest_after(took_s, len(body))
        if refused:
            return Refusal(400, values[0], values[1], param=values[2]), rest_s
        if rest_s > REST * SLOW_S:
            values["transferable"] = False
        return Asked(**values, body=found), rest_s


async def _piece(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big"))


def rest_after(took_s: float, size: int) -> float:
    """Seconds until the next body of a source, after one of `size` bytes took `took_s` of a processor."""
    return min(REST * max(0.0, took_s - USUAL_S * size), MAX_REST_S)


def _answer(path: str, options: Mapping[str, Any], body: bytes) -> tuple[Any, bytes]:
    began_s = time.process_time()
    try:
        asked = read_asked(path, body, **options)
    except Refusal as refusal:
        return [True, [refusal.code, str(refusal), refusal.param], time.process_time() - began_s], b""
    took_s = time.process_time() - began_s
    names = [one.name for one in fields(asked) if one.name != "body"]
    return [False, {name: getattr(asked, name) for name in names}, took_s], asked.body


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the gateway has gone."""
    while header := requests.read(LENGTH_BYTES):
        path, options = msgpack.unpackb(requests.read(int.from_bytes(header, "big")))
        body = requests.read(int.from_bytes(requests.read(LENGTH_BYTES), "big"))
        head, found = _answer(path, options, body)
        for piece in (msgpack.packb(head), found):
            answers.write(len(piece).to_bytes(LENGTH_BYTES, "big"))
            answers.write(piece)
        answers.flush()


if __name__ == "__main__":
    os.nice(NICENESS)
    # Collections while a body becomes objects take ten times as long as the rest; nothing there is a cycle.
    gc.disable()
    serve(sys.stdin.buffer, sys.stdout.buffer)
