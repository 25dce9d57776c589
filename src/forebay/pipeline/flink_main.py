"""The process that holds Flink for one attempt.

It leads a process group with its JVM, and ends with its parent.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import signal
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil

from forebay.clock import uptime_s
from forebay.errors import ForebayError
from forebay.files import FULL
from forebay.processes import descendants


@dataclass(frozen=True, slots=True)
class ChildArgs:
    parent: int
    reports: int
    confirmations: int
    log_dir: str
    archive_dir: str
    jars: tuple[str, ...] = ()
    planner: bool = False
    plugins: str | None = None

    def encode(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @staticmethod
    def decode(text: str) -> ChildArgs:
        return ChildArgs(**orjson.loads(text))


log = logging.getLogger(__name__)

MOMENT = struct.Struct("d")
AGAIN_S = 0.1
CLOCK_BOOTTIME, ABSOLUTE = 7, 1
SCARCE = FULL | {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Errors that may pass when the system has resources again."""


class LeaseGuard:
    """Suspends the JVM `pid` and all other children while the lease may have expired.

    So nothing commits. The command writes the lease's expiry to `confirmations`. Without a newer one in time,
    children get SIGSTOP; after a renewal, SIGCONT. Times are on `uptime_s`, which includes a machine's
    suspension. If the guard fails, it kills the JVM.
    """

    def __init__(self, confirmations: int, pid: int) -> None:
        self._confirmations = confirmations
        self._pid = pid
        self._alarm = _Alarm()
        self._suspended = False

    def start(self) -> None:
        threading.Thread(target=self._run_or_kill, name="lease-guard", daemon=True).start()

    def _run_or_kill(self) -> None:
        try:
            self._run()
        except Exception:
            log.exception("the lease cannot be guarded; Flink's JVM is killed")
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _run(self) -> None:
        until_s: float | None = None
        while True:
            if self._suspended:
                readable, _, _ = select.select([self._confirmations], [], [], AGAIN_S)
            else:
                readable, _, _ = select.select([self._confirmations, self._alarm.fd], [], [])
            if self._confirmations in readable:
                read = os.read(self._confirmations, MOMENT.size * 1024)
                if not read:
                    return  # The command has ended, and so does this process (see `FlinkClient`).
                (until_s,) = MOMENT.unpack(read[-MOMENT.size :])
                self._alarm.set(until_s)
            if until_s is not None:
                held = uptime_s() < until_s
                self._resume() if held else self._suspend()

    def _suspend(self) -> None:
        self._suspended = True
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGSTOP)
        self._signal(psutil.Process.suspend)

    def _resume(self) -> None:
        if self._suspended:
            self._suspended = False
            self._signal(psutil.Process.resume)

    def _signal(self, send: Callable[[psutil.Process], None]) -> None:
        for process in descendants(os.getpid()):
            with suppress(psutil.Error):
                send(process)


class _Alarm:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.timerfd_create(CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, moment_s: float) -> None:
        # Discards an unread expiration. A time of 0 would disarm the timer.
        seconds, fraction = divmod(max(moment_s, 1e-3), 1)
        interval_and_value = (ctypes.c_long * 4)(0, 0, int(seconds), int(fraction * 1e9))
        if self._libc.timerfd_settime(self.fd, ABSOLUTE, interval_and_value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")


def main() -> None:
    # Imported here, because the command imports this module for `ChildArgs`.
    from forebay.flink.jvm import HEAP_MB, launch_jvm
    from forebay.processes import parent_death_signal

    os.setpgid(0, 0)
    parent_death_signal(signal.SIGKILL)()
    args = ChildArgs.decode(sys.argv[1])
    if os.getppid() != args.parent:
        os._exit(1)
    log_dir = Path(args.log_dir)
    jars = [Path(jar) for jar in args.jars]
    try:
        jvm = launch_jvm(
            log_dir,
            heap_mb=HEAP_MB,
            jars=jars,
            planner=args.planner,
            archive_dir=Path(args.archive_dir),
            plugins=None if args.plugins is None else Path(args.plugins),
        )
    except (ForebayError, OSError) as error:
        os.write(args.reports, _refusal(error))
        os._exit(1)
    LeaseGuard(args.confirmations, jvm.process.pid).start()
    # Imported late: it takes half a second, during which the JVM starts.
    from forebay.flink.sealed_gateway import release_in_background
    from forebay.pipeline.flink_client import FlinkClient

    # The guard's thread must not wait for a JVM that it has suspended.
    release_in_background()
    FlinkClient(jvm, os.fdopen(args.reports, "wb", buffering=0), sys.stdin.buffer, log_dir).serve()


def _refusal(error: ForebayError | OSError) -> bytes:
    from forebay.pipeline.messages import AttemptLost, Failed, encode_report

    if not isinstance(error, OSError):
        return encode_report(Failed(type(error).__name__, str(error)))
    what = f"Flink's JVM cannot be started: {error}"
    return encode_report(AttemptLost(what) if error.errno in SCARCE else Failed("LaunchError", what))


if __name__ == "__main__":
    main()
