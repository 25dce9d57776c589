"""Results on standard output: what the JVM prints, passed on line by line and counted."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import orjson

from forebay.control_characters import replace_controls
from forebay.errors import PipelineFailed

CHUNK_BYTES = 1 << 16
STDOUT, STDERR = 1, 2


class StdoutResults:
    """Takes the standard output of a JVM that starts within `taken`, or of processes that are given `fileno`,
    and passes it on from a thread.

    Lines that are results go to `out`, all others to `odd`: whoever reads results reads nothing else.
    `closed` says that nobody reads `out` any more; what comes then is dropped. Nothing passes through where
    the JVM ran already.
    """

    def __init__(self, out: int = STDOUT, odd: int = STDERR) -> None:
        self.results = self.prompt_tokens = self.completion_tokens = 0
        self.closed = False
        self._read, write = os.pipe()
        self._write: int | None = write
        self._out, self._odd = os.dup(out), os.dup(odd)
        self._seen = os.isatty(out)
        self._ended = False
        self._lock = threading.Lock()
        threading.Thread(target=self._pass_on, name="printed-results", daemon=True).start()

    def fileno(self) -> int:
        """Where a process may write, until `close`."""
        assert self._write is not None
        return self._write

    def close(self) -> None:
        """Take no more processes; the thread ends with the last of those that were given `fileno`."""
        if self._write is not None:
            os.close(self._write)
            self._write = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """What starts in this block has our pipe as its standard output. Called once."""
        sys.stdout.flush()
        saved = os.dup(STDOUT)
        os.dup2(self.fileno(), STDOUT)
        self.close()
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(saved, STDOUT)
            os.close(saved)

    def check(self) -> None:
        """Raise `PipelineFailed` where nobody reads the results any more."""
        if self.closed:
            raise PipelineFailed(
                "standard output was closed, and the job is cancelled; run the same command to "
                "resume from the newest checkpoint"
            )

    def settle(self) -> None:
        """Block until everything that was printed before the call has been passed on and counted."""
        while True:
            with self._lock:
                if self._ended or not select.select([self._read], [], [], 0)[0]:
                    return
            time.sleep(0.001)

    def _pass_on(self) -> None:
        rest = b""
        while not self._ended:
            select.select([self._read], [], [])
            # Under the lock, so that what has been read has been counted wherever the lock is free.
            with self._lock:
                chunk = os.read(self._read, CHUNK_BYTES)
                *lines, rest = (rest + chunk).split(b"\n")
                results: list[bytes] = []
                odd: list[bytes] = []
                for line in filter(None, lines):
                    (results if self._count(line) else odd).append(line)
                self._pass_results(results)
                if odd:
                    with suppress(OSError):
                        os.write(self._odd, _plain(b"\n".join((*odd, b""))))
                self._ended = not chunk
        for end in (self._read, self._out, self._odd):
            os.close(end)

    def _count(self, line: bytes) -> bool:
        try:
            usage = orjson.loads(line)["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
        except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
            return False
        self.results += 1
        return True

    def _pass_results(self, lines: list[bytes]) -> None:
        text = b"".join(line + b"\n" for line in lines)
        left = memoryview(_plain(text) if self._seen else text)
        try:
            while left and not self.closed:
                left = left[os.write(self._out, left) :]
        except OSError:
            self.closed = True


def _plain(text: bytes) -> bytes:
    """For a terminal: JSON lets some characters through that one obeys, and other lines may hold anything."""
    return replace_controls(text.decode("utf-8", "replace")).encode()
