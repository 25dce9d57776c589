"""A process and its children are suspended while the lease may have expired."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from forebay.clock import uptime_s
from forebay.errors import ForebayError, SettingError
from forebay.pipeline.flink_main import MOMENT, LeaseGuard, _refusal
from forebay.pipeline.messages import AttemptLost, Failed, Report, decode_report
from forebay.processes import descendants, kill
from forebay.testing.waiting import wait_until

LATER_S = 3600.0
GUARDED = """
import subprocess, sys, time
from forebay.pipeline.flink_main import LeaseGuard
count = "import time, itertools\\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.001)"
child = subprocess.Popen([sys.executable, "-c", count], stdout=open(sys.argv[2], "w"))
LeaseGuard(int(sys.argv[1]), child.pid).start()
subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
child.wait()
"""


class Guarded:
    """A guarded child that writes, and a second one."""

    def __init__(self, work: Path) -> None:
        self._out = work / "counted"
        read, self._confirm = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", GUARDED, str(read), str(self._out)], pass_fds=(read,)
        )
        os.close(read)
        wait_until(lambda: len(self.children()) == 2 and self.written() > 0)

    def children(self) -> set[psutil.Process]:
        return descendants(self.process.pid)

    def confirm(self, until_s: float) -> None:
        os.write(self._confirm, MOMENT.pack(until_s))

    def written(self) -> int:
        return self._out.stat().st_size if self._out.exists() else 0

    def stopped(self) -> bool:
        return all(child.status() == psutil.STATUS_STOPPED for child in self.children())

    def runs(self) -> bool:
        return not any(child.status() == psutil.STATUS_STOPPED for child in self.children())

    def close(self) -> None:
        children = self.children()
        os.close(self._confirm)
        self.process.kill()
        kill(children)
        self.process.wait()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    made.close()


def test_children_run_before_the_first_confirmation(guarded: Guarded) -> None:
    assert guarded.runs()


@pytest.mark.heavy
def test_children_are_suspended_when_the_lease_expires(guarded: Guarded) -> None:
    guarded.confirm(uptime_s() + 0.2)
    wait_until(guarded.stopped)
    written = guarded.written()
    guarded.confirm(uptime_s() - 1.0)
    assert guarded.stopped()
    assert guarded.written() == written
    guarded.confirm(uptime_s() + LATER_S)
    wait_until(guarded.runs)
    wait_until(lambda: guarded.written() > written)


def test_only_the_last_confirmation_counts(guarded: Guarded) -> None:
    """As after a suspension of the guard itself."""
    guarded.process.send_signal(signal.SIGSTOP)
    guarded.confirm(uptime_s() + LATER_S)
    guarded.confirm(uptime_s() - 1.0)
    guarded.process.send_signal(signal.SIGCONT)
    wait_until(guarded.stopped)


def test_failed_guard_kills_its_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    LeaseGuard(-1, child.pid).start()
    wait_until(lambda: child.poll() is not None)
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (SettingError("others may write"), Failed("SettingError", "others may write")),
        (
            PermissionError(errno.EACCES, "refused", "java"),
            Failed("LaunchError", "Flink's JVM cannot be started: [Errno 13] refused: 'java'"),
        ),
        (
            OSError(errno.ENOSPC, "full", "tmp-1"),
            AttemptLost("Flink's JVM cannot be started: [Errno 28] full: 'tmp-1'"),
        ),
        (
            BlockingIOError(errno.EAGAIN, "no process"),
            AttemptLost("Flink's JVM cannot be started: [Errno 11] no process"),
        ),
    ],
)
def test_only_a_jvm_that_may_start_later_is_tried_again(
    error: ForebayError | OSError, report: Report
) -> None:
    assert decode_report(_refusal(error)) == report
