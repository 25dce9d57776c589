"""Reads large bodies in a process of its own: parsing one would hold up all other clients."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import IO, Any

import msgpack

from forebay.gateway.asked import Asked, read_asked
from forebay.gateway.refusal import Refusal, many_values, own_mistake

LOG = logging.getLogger("forebay.gateway")
LARGE_BYTES = 1 << 18
LARGE_CONTAINERS = 2000
"""Bodies above either are read in the other process: below, reading takes a few milliseconds."""
LENGTH_BYTES = 8
PAUSE_S = 6e-6
"""Two hundred times what an engine needs for each value of a body, on its event loop: about 30 ns."""
MAX_PAUSE_S, MAX_LINE_S = 60.0, 10.0
ACTIVE_S = 5.0
MAX_VALUES_TWICE = 100_000
"""A body with more values is not read again for a prefill elsewhere."""
NICENESS = 10
"""The event loop goes first if there is one core for both."""


@dataclass(slots=True)
class SourceLine:
    """The bodies of one source, of which one is read at a time. `pause_s`: all pauses of those in line."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    pause_s: float = 0.0


class BodyReader:
    """Reads bodies, small ones at once. The process for large ones starts with the first of them.

    Each source has at most one of its bodies in line. While other sources are active, a source pauses after a
    body with many values: the engine will parse it on its event loop. `environment`: of the process; it needs
    no secrets.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._free = asyncio.Lock()
        self._lines: dict[str, SourceLine] = {}
        self._newest = self._other = ("", -math.inf)
        self.draining = False

    async def read(self, source: str, path: str, body: bytes, **options: Any) -> Asked:
        """As `read_asked`; raises `Refusal` (429), too, if the source's bodies wait for too long."""
        now_s = asyncio.get_running_loop().time()
        if source != self._newest[0]:
            self._other = self._newest
        self._newest = source, now_s
        if len(body) <= LARGE_BYTES and body.count(b"[") + body.count(b"{") <= LARGE_CONTAINERS:
            return read_asked(path, body, **options)
        pause_s = pause_after(body)
        line = self._lines.setdefault(source, SourceLine())
        if line.pause_s > MAX_LINE_S and self._pauses(source):
            raise many_values(line.pause_s)
        line.waiting += 1
        line.pause_s += pause_s
        try:
            await line.turn.acquire()
            try:
                await self._free.acquire()
            except BaseException:
                line.turn.release()
                raise
        except BaseException:
            self._leave(source, line, pause_s)
            raise
        reading = asyncio.ensure_future(self._read_there(path, body, options))
        reading.add_done_callback(partial(self._done, source, line, pause_s))
        # If the client hangs up, what has begun ends: another process would take longer to start.
        return await asyncio.shield(reading)

    def _pauses(self, source: str) -> bool:
        newest, seen_s = self._other if source == self._newest[0] else self._newest
        active = newest != "" and asyncio.get_running_loop().time() - seen_s < ACTIVE_S
        return active and not self.draining

    def _done(self, source: str, line: SourceLine, pause_s: float, reading: asyncio.Future[Asked]) -> None:
        self._free.release()
        if not reading.cancelled():
            reading.exception()  # Reported by the request, if it still waits.
        if pause_s and self._pauses(source):
            asyncio.get_running_loop().call_later(pause_s, self._rested, source, line, pause_s)
        else:
            self._rested(source, line, pause_s)

    def _rested(self, source: str, line: SourceLine, pause_s: float) -> None:
        line.turn.release()
        self._leave(source, line, pause_s)

    def _leave(self, source: str, line: SourceLine, pause_s: float) -> None:
        line.waiting -= 1
        line.pause_s -= pause_s
        if not line.waiting:
            del self._lines[source]

    async def close(self) -> None:
        async with self._free:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(ConnectionError):
                await process.communicate()

    async def _read_there(self, path: str, body: bytes, options: Mapping[str, Any]) -> Asked:
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
        refused, values = msgpack.unpackb(head)
        if refused:
            raise Refusal(400, values[0], values[1], param=values[2])
        if body.count(b",") > MAX_VALUES_TWICE:
            values["transferable"] = False
        return Asked(**values, body=found)


async def _piece(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big"))


def pause_after(body: bytes) -> float:
    """Seconds until the next large body of a source. Commas in texts count as values; few texts have many."""
    return min(PAUSE_S * body.count(b","), MAX_PAUSE_S)


def _answer(path: str, options: Mapping[str, Any], body: bytes) -> tuple[Any, bytes]:
    try:
        asked = read_asked(path, body, **options)
    except Refusal as refusal:
        return [True, [refusal.code, str(refusal), refusal.param]], b""
    names = [one.name for one in fields(asked) if one.name != "body"]
    return [False, {name: getattr(asked, name) for name in names}], asked.body


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
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
