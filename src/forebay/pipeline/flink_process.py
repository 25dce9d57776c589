"""The supervisor's side of the process that holds Flink."""

from __future__ import annotations

import itertools
import os
import pickle
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.connectors.jars import installed_jar, plugins
from forebay.pipeline.flink_main import MOMENT, ChildArgs
from forebay.pipeline.messages import CANCEL, DRAIN, GO, AttemptLost, Report, decode_report, end_of
from forebay.pipeline.outputs import StdoutResults
from forebay.processes import module_command, own_name

if TYPE_CHECKING:
    from forebay.pipeline.inference import Served
    from forebay.pipeline.messages import AttemptSpec, Preparation
    from forebay.pipeline.plan import Plan


CHUNK_BYTES = 1 << 16
GONE_S = 30.0
LAST_BYTES = 300

_numbers = itertools.count(1)


class FlinkProcess:
    """A process that holds Flink for one attempt, with its JVM. Both log to `settings.run / "flink"`.

    The kernel kills it when the thread that started it ends.
    """

    def __init__(self, plan: Plan, stdout: int) -> None:
        settings = plan.settings
        self._class_path = plan.jars, plan.planner
        log_dir = settings.run / "flink"
        log_dir.mkdir(parents=True, exist_ok=True)
        self.log = log_dir / f"flink-client-{own_name()}-{next(_numbers)}.log"
        self._reports, reports = os.pipe()
        confirmations, confirm = os.pipe()
        os.set_blocking(confirm, False)
        self._confirm: int | None = confirm
        self._confirming = threading.Lock()
        folder = plugins(settings.connectors)
        arguments = ChildArgs(
            os.getpid(),
            reports,
            confirmations,
            str(log_dir),
            str(settings.java),
            tuple(map(str, plan.jars)),
            plan.planner,
            str(folder) if folder.is_dir() else None,
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                module_command("forebay.pipeline.flink_main", arguments.encode()),
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
        return self._process.pid

    def runs(self, plan: Plan) -> bool:
        return self._class_path == (plan.jars, plan.planner)

    def send(self, what: Preparation | AttemptSpec | Served) -> None:
        self._write(pickle.dumps(what))

    def confirm_lease(self, until_s: float) -> None:
        """Thread-safe; ignored after `kill`."""
        with self._confirming:
            if self._confirm is not None:
                # Full if the process is stopped: it then reads older moments first, and waits for a newer
                # one.
                with suppress(BrokenPipeError, BlockingIOError):
                    os.write(self._confirm, MOMENT.pack(until_s))

    def go(self) -> None:
        self._write(GO)

    def drain(self) -> None:
        self._write(DRAIN)

    def receive(self, timeout_s: float) -> Report | None:
        until_s = time.monotonic() + timeout_s
        while b"\n" not in self._read:
            left_s = until_s - time.monotonic()
            if left_s < 0 or not select.select([self._reports], [], [], left_s)[0]:
                return None
            data = os.read(self._reports, CHUNK_BYTES)
            if not data:
                return AttemptLost(f"the process that holds Flink {self._end()}")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return decode_report(line)

    def cancel(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for the job; block until the process is gone."""
        self._write(CANCEL)
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0 and select.select([self._reports], [], [], left_s)[
            0
        ]:
            if not os.read(self._reports, CHUNK_BYTES):
                break
        self.kill()

    def kill(self) -> None:
        """Block until the process and its JVM are gone. Idempotent."""
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

    def _end(self) -> str:
        status = self._process.wait(GONE_S)
        log = self.log.read_bytes() if self.log.is_file() else b""
        lines = log[-LAST_BYTES:].decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{end_of(status)}: {last}; its log is {self.log}" if last and status > 0 else end_of(status)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # If it has ended, `receive` reports that.
        with suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()


class FlinkLauncher:
    def __init__(self) -> None:
        self.printed = StdoutResults()
        self._ahead: FlinkProcess | None = None

    def start(self, plan: Plan) -> None:
        """Returns immediately. Raises `SettingError` for a jar that others may write to."""
        for jar in plan.connectors:
            installed_jar(jar, plan.settings.connectors)
        if self._ahead is None:
            self._ahead = FlinkProcess(plan, self.printed.fileno())

    def prepare(self, preparation: Preparation) -> None:
        if self._ahead is not None:
            self._ahead.send(preparation)

    def take(self, plan: Plan) -> FlinkProcess:
        taken, self._ahead = self._ahead, None
        if taken is not None and not taken.runs(plan):
            taken.kill()
            taken = None
        return taken or FlinkProcess(plan, self.printed.fileno())

    def __enter__(self) -> FlinkLauncher:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ahead is not None:
            self._ahead.kill()
            self._ahead = None
        self.printed.close()
