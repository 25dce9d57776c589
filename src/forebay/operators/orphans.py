"""Python workers that end with the JVM that they work for.

Flink starts a worker below a shell, and ends both when a job ends. A JVM that is killed ends nothing: the
worker would stay for ever, with its calls.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import psutil

WORKER_MODULE = "pyflink.fn_execution.beam.beam_boot"
WATCH = "jvm-watch"
LOOK_S = 1.0


def is_worker() -> bool:
    """Whether this process is one of Flink's Python workers."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == WORKER_MODULE


def end_with_jvm() -> None:
    """In a Python worker process, see to it that it ends when its JVM is gone; elsewhere do nothing.

    Watches on a daemon thread, one per process.
    """
    if not is_worker():
        return
    if any(thread.name == WATCH for thread in threading.enumerate()):
        return
    threading.Thread(target=watch_grandparent, name=WATCH, daemon=True).start()


def watch_grandparent() -> None:
    """Block while the shell above this process keeps its parent; then end this process at once."""
    try:
        shell = psutil.Process(os.getppid())
        jvm = shell.ppid()
        while shell.is_running() and shell.ppid() == jvm:
            time.sleep(LOOK_S)
    except psutil.NoSuchProcess:
        pass
    os._exit(1)
