"""A TCP proxy in this process that a drill can cut and stall."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

START_TIMEOUT_S = 30.0
PIECE_BYTES = 65_536


class Link:
    """Forwards from a free local port to `port`; a context manager."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._refusing = False
        self._trap: Callable[[bytes], bool] | None = None
        self.trapped = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset all present and new connections, until `restore`."""
        self._call(self._cut)

    def stall(self) -> None:
        """Forward nothing until `restore`; bytes in flight wait."""
        self._call(self._open.clear)

    def stall_at(self, trap: Callable[[bytes], bool]) -> None:
        """At the first piece for which `trap` is true, set `trapped` and stall."""
        self.trapped.clear()
        self._trap = trap

    def restore(self) -> None:
        self._call(self._restore)

    def __enter__(self) -> Link:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    def _call(self, what: object) -> None:
        done = threading.Event()

        def call() -> None:
            assert callable(what)
            what()
            done.set()

        self._loop.call_soon_threadsafe(call)
        done.wait(START_TIMEOUT_S)

    def _cut(self) -> None:
        self._refusing = True
        for writer in self._writers:
            _reset(writer)

    def _restore(self) -> None:
        self._refusing = False
        self._open.set()

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._taken, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _taken(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                _reset(writer)
                return
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(far)
            await asyncio.gather(self._pass(reader, far), self._pass(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, far):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE_BYTES):
            if self._trap is not None and self._trap(data):
                self._trap = None
                self._open.clear()
                self.trapped.set()
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    # Without this, the connection would be closed in order if nothing is left to send.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
