"""Workers end when the JVM two steps above them does."""

from __future__ import annotations

import subprocess
import sys
import threading

import psutil

from forebay.operators.orphans import WATCH, end_with_jvm

WORKER = (
    "from forebay.operators.orphans import watch_grandparent; print('up', flush=True); watch_grandparent()"
)
# As Flink has it: the JVM runs a shell, which runs the worker in a pipe.
JVM = """
import subprocess, sys
subprocess.run(["bash", "-c", '"$0" -c "$1" | cat', sys.executable, sys.argv[1]])
"""


def test_a_worker_ends_when_its_grandparent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", JVM, WORKER], stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout is not None
        assert jvm.stdout.readline() == b"up\n"
        below = psutil.Process(jvm.pid).children(recursive=True)
        assert any(WORKER in process.cmdline() for process in below)
        assert all(process.is_running() for process in below)
        jvm.kill()
        _, left = psutil.wait_procs(below, timeout=180)
        for process in left:
            process.kill()
        assert left == []


def test_a_process_that_is_no_worker_is_not_watched() -> None:
    end_with_jvm()
    assert all(thread.name != WATCH for thread in threading.enumerate())
