"""The other end of the process that holds Flink: it is started, told what to do, heard, and ended. What its
JVM prints, results on standard output, is passed on line by line and counted.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.connectors.jars import plugins
from forebay.errors import PipelineFailed
from forebay.json_numbers import read_json
from forebay.processes import module_command, own_name
from forebay.runtime.flink_protocol import CANCEL, DRAIN, GO, Post, end_of
from forebay.runtime.lease_guard import MOMENT
from forebay.runtime.reports import Lost, Report, decode_report
from forebay.settings import Settings
from forebay.untrusted_text import replace_controls

if TYPE_CHECKING:
    from forebay.runtime.attempt import Order, Preparation
    from forebay.runtime.inference import Served


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
            usage = read_json(line)["usage"]
            self.prompt_tokens += usage["prompt_tokens"]
            self.completion_tokens += usage["completion_tokens"]
        except (ValueError, TypeError, KeyError, IndexError):
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


GONE_S = 30.0

_numbers = itertools.count(1)


class FlinkProcess:
    """A process that holds Flink for one attempt, with its JVM.

    To be started from a thread that lives as long as it is needed: with that thread's end the kernel ends it.
    Its log, and that of its JVM, are in `settings.run / "flink"`.

    Standard output of the JVM goes to the file descriptor `stdout`; its class path has `jars`, and
    with them, or where it is wished, Flink's table planner.
    """

    def __init__(
        self, settings: Settings, stdout: int, jars: Sequence[Path] = (), *, planner: bool = False
    ) -> None:
        self.jars = tuple(jars)
        self.planner = planner or bool(jars)
        log_dir = settings.run / "flink"
        log_dir.mkdir(parents=True, exist_ok=True)
        self.log = log_dir / f"flink-client-{own_name()}-{next(_numbers)}.log"
        self._reports, reports = os.pipe()
        confirmations, confirm = os.pipe()
        os.set_blocking(confirm, False)
        self._confirm: int | None = confirm
        self._confirming = threading.Lock()
        folder = plugins(settings.connectors)
        post = Post(
            os.getpid(),
            reports,
            confirmations,
            str(log_dir),
            str(settings.java),
            tuple(map(str, jars)),
            self.planner,
            str(folder) if folder.is_dir() else None,
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                module_command("forebay.runtime.flink_main", post.encode()),
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=log,
                pass_fds=(reports, confirmations),
            )
        os.close(reports)
        os.close(confirmations)
        self._read = b""
        self._ended = False

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group, too."""
        return self._process.pid

    def send(self, what: Preparation | Order | Served) -> None:
        """Say what to do: what to prepare, where that is known before the order; the order, and once that is
        reported to be checked, the replicas."""
        self._write(pickle.dumps(what))

    def confirm_lease(self, until_s: float) -> None:
        """Report that this run holds the lease on its state until `until_s` (see `LeaseGuard`). May be called
        from any thread, and does nothing once the process has been killed."""
        with self._confirming:
            if self._confirm is not None:
                # Full if the process is stopped: it then finds older moments, and waits for the next one.
                with suppress(BrokenPipeError, BlockingIOError):
                    os.write(self._confirm, MOMENT.pack(until_s))

    def go(self) -> None:
        """Have the job submitted that was reported to be ready."""
        self._write(GO)

    def drain(self) -> None:
        """Have the job complete what it has read, commit it and end."""
        self._write(DRAIN)

    def receive(self, timeout_s: float) -> Report | None:
        """The next report; None where there is none within `timeout_s`. Of a process that has ended without
        a last word, that it is lost."""
        until_s = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_s = until_s - time.monotonic()
            if left_s < 0 or not select.select([self._reports], [], [], left_s)[0]:
                return None
            data = os.read(self._reports, CHUNK_BYTES)
            if not data:
                return Lost(f"the process that holds Flink {end_of(self._process.wait(GONE_S))}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return decode_report(line)

    def cancel(self, timeout_s: float) -> None:
        """Have the job cancelled, at most `timeout_s` long, and end the process; blocks until it is gone."""
        self._write(CANCEL)
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0 and select.select([self._reports], [], [], left_s)[
            0
        ]:
            if not os.read(self._reports, CHUNK_BYTES):
                break
        self.kill()

    def kill(self) -> None:
        """End the process and its JVM at once; blocks until it is gone. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        with self._confirming:
            if self._confirm is not None:
                os.close(self._confirm)
                self._confirm = None
        if self._process.poll() is None:
            # It may not lead its group yet.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        os.close(self._reports)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # Where it has ended, `receive` tells.
        with suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()


class FlinkLauncher:
    """Starts the processes of a run, the first of them ahead of time where that is wished: it takes longest.

    A context manager: what was started ahead and is not taken ends with the block. Standard output of their
    JVMs goes through `printed`.
    """

    def __init__(self, settings: Settings) -> None:
        self.printed = StdoutResults()
        self._settings = settings
        self._ahead: FlinkProcess | None = None

    def start_ahead(self, jars: Sequence[Path], *, planner: bool = False) -> None:
        """Start a process for the next `take`, which will want `jars` and `planner` as far as is known;
        returns at once."""
        if self._ahead is None:
            self._ahead = self._started(jars, planner)

    def prepare(self, preparation: Preparation, jars: Sequence[Path], *, planner: bool = False) -> None:
        """Have the process that was started ahead, if there is one, prepare for the order that it will get;
        `jars` and `planner` are those of the `take` that follows. Returns at once."""
        if self._ahead is not None:
            self._ahead = self.take(jars, planner=planner)
            self._ahead.send(preparation)

    def take(self, jars: Sequence[Path], *, planner: bool = False) -> FlinkProcess:
        """A process that nobody else has, with `jars` and no others, and with the planner where it is needed;
        whoever takes it ends it."""
        taken, self._ahead = self._ahead, None
        if taken is not None and (taken.jars != tuple(jars) or (planner and not taken.planner)):
            taken.kill()
            taken = None
        return taken or self._started(jars, planner)

    def _started(self, jars: Sequence[Path], planner: bool) -> FlinkProcess:
        return FlinkProcess(self._settings, self.printed.fileno(), jars, planner=planner)

    def __enter__(self) -> FlinkLauncher:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead = None
        self.printed.close()
