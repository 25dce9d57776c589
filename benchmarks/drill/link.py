"""What a drill does to its processes: a TCP proxy that can be cut and stalled, a full disk, another clock."""

from __future__ import annotations

import asyncio
import mmap
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forebay.errors import SettingError

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


SOURCE = Path(__file__).with_name("shim.c")
LAYOUT = struct.Struct("=iiq")


def compiler() -> str | None:
    """The C compiler for the shim; None without one, and on other systems than Linux."""
    return (shutil.which("cc") or shutil.which("gcc")) if sys.platform == "linux" else None


class Shim:
    """A preloaded library, and the shared page that controls it."""

    def __init__(self, folder: Path, disk: Path) -> None:
        cc = compiler()
        if cc is None:
            raise SettingError("a full disk and a set clock need Linux and a C compiler (cc)")
        folder.mkdir(parents=True, exist_ok=True)
        library, control = folder / "shim.so", folder / "control"
        built = subprocess.run(
            [cc, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise SettingError(f"the shim cannot be built: {built.stderr[-500:]}")
        control.write_bytes(bytes(LAYOUT.size))
        with control.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), LAYOUT.size)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FOREBAY_DRILL_CONTROL": str(control),
            "FOREBAY_DRILL_DISK": f"{disk.resolve()}/",
        }
        self._full, self._slow_ms, self._clock_ms = False, 0, 0

    def full(self, full: bool) -> None:
        """Whether every write fails with "No space left on device"."""
        self._full = full
        self._set()

    def slow(self, slow_ms: int) -> None:
        self._slow_ms = slow_ms
        self._set()

    def step_clock(self, by_s: float) -> None:
        self._clock_ms += round(by_s * 1000)
        self._set()

    def close(self) -> None:
        self._page.close()

    def _set(self) -> None:
        self._page[:] = LAYOUT.pack(self._full, self._slow_ms, self._clock_ms)
