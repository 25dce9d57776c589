"""Suspends Flink while the lease on its state may have expired: a suspended JVM commits nothing.

The command renews the lease and writes the expiry to a pipe. If it passes without a newer one (the command is
stopped, the store does not answer, another run took over), the JVMs get SIGSTOP; after a renewal, which
proves that no other run held the lease, SIGCONT. Times are on `uptime_s`, which includes a machine's
suspension; so does the timer, which expires as soon as the machine wakes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import psutil

from forebay.clock import uptime_s
from forebay.processes import descendants

log = logging.getLogger(__name__)

MOMENT = struct.Struct("d")
AGAIN_S = 0.1
"""Interval for suspending processes started after the others were suspended."""
CLOCK_BOOTTIME, ABSOLUTE = 7, 1


class LeaseGuard:
    """Guards the JVM `pid` and all other children of this process, on a thread, from the first expiry on.

    Ends when the other end of `confirmations` closes. If it fails, it kills the JVM, which nothing would
    suspend any more.
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
    """A file descriptor that becomes readable at a time of `uptime_s` (timerfd_create(2))."""

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
