"""Processes that are started here: they end with the one that started them, and are told apart from strangers
that were given the same number later.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1


def parent_death_signal(number: signal.Signals) -> Callable[[], None]:
    """A function that, called in a child process, has the kernel send it `number` when its parent ends.

    On Linux; elsewhere it does nothing. The parent is the *thread* that started the child: only the main
    thread lives as long as its process. May be a `preexec_fn`: what it needs is loaded by this call. A parent
    that had ended before is not noticed: look at `os.getppid()` after it.
    """
    if sys.platform != "linux":
        return lambda: None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, number)

    return ask


WITHOUT_WORKING_DIRECTORY = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""`-P` is for Python 3.11 and later, and `-I` would forget PYTHONPATH."""


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module` as `python -m` does."""
    return [sys.executable, "-c", WITHOUT_WORKING_DIRECTORY, module, *arguments]


# psutil adds the boot time, which it knows to the second, to the kernel's start time.
SAME_BIRTH_S = 1.5
POLL_S = 0.05


def birth_s(pid: int) -> float | None:
    """Seconds from boot to the process's start; None where there is no such process or only its zombie.

    Counted from boot, because the wall clock may be set between two looks.
    """
    try:
        boot = psutil.boot_time()
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time() - boot
    except psutil.Error:
        return None


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def pid_space() -> str:
    """The name of the pids that this process can see: another one for each boot of each machine, and for each
    PID namespace, as of a container. Pids of another space have no meaning here."""
    try:
        space = f"{BOOT_ID.read_text(encoding='ascii').strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        space = platform.node()
    return hashlib.blake2b(space.encode(), digest_size=6).hexdigest()


def own_name() -> str:
    """A name for files of this process: its pid, and random digits, as processes of other containers and
    machines may have the same pid and write to the same folder."""
    return _own_name(os.getpid())


@cache
def _own_name(pid: int) -> str:
    return f"{pid}-{secrets.token_hex(4)}"


def is_same(pid: int, born_s: float) -> bool:
    """Whether `pid` still is the process that was born then."""
    now = birth_s(pid)
    return now is not None and abs(now - born_s) < SAME_BIRTH_S


def session_members(session: int) -> set[psutil.Process]:
    """All living processes of a session, whoever their parent is by now."""
    return {
        process for process in psutil.process_iter() if _session(process.pid) == session and alive(process)
    }


def descendants(pid: int) -> set[psutil.Process]:
    """All living children of `pid`, and theirs."""
    try:
        return {child for child in psutil.Process(pid).children(recursive=True) if alive(child)}
    except psutil.Error:
        return set()


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_gone(processes: Iterable[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Block until all have ended, at most `timeout_s`; those that have not."""
    deadline = time.monotonic() + timeout_s
    left = {process for process in processes if alive(process)}
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = {process for process in left if alive(process)}
    return left


def terminate(processes: Iterable[psutil.Process]) -> None:
    """SIGTERM to each that still is the process it was."""
    for process in processes:
        try:
            process.terminate()
        except psutil.Error:
            continue


def kill(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> set[psutil.Process]:
    """SIGKILL to each that still is the process it was; waits for their end and returns those left.

    Trackers of Python's multiprocessing come last, and only where they stay: when their users are gone they
    unlink the shared memory that those held, and end.
    """
    everyone = set(processes)
    trackers = {process for process in everyone if _is_tracker(process)}
    left = _kill_now(everyone - trackers, timeout_s)
    return left | _kill_now(wait_gone(trackers, timeout_s), timeout_s)


def _kill_now(processes: set[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    return wait_gone(processes, timeout_s)


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None
