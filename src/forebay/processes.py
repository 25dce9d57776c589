"""Child processes that end with their parent, identification despite reused pids, and names of threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1


def parent_death_signal(number: signal.Signals) -> Callable[[], None]:
    """A function for a child process: the kernel will send it `number` when its parent ends (Linux only).

    The parent is the *thread* that started the child; only the main thread lives as long as its process. Safe
    as a `preexec_fn`. If the parent may have ended before, check `os.getppid()` afterwards.
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
"""`-P` needs Python 3.11, and `-I` would ignore PYTHONPATH."""


def module_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", WITHOUT_WORKING_DIRECTORY, module, *arguments]


# psutil adds the boot time, in whole seconds, to the kernel's start time.
SAME_BIRTH_S = 1.5
POLL_S = 0.05


def birth_s(pid: int) -> float | None:
    """Seconds from boot, since the wall clock may be changed; None if the process does not exist or is a
    zombie."""
    try:
        boot = psutil.boot_time()
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time() - boot
    except psutil.Error:
        return None


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def pid_space() -> str:
    """Identifies the pids visible to this process: differs per boot, machine and PID namespace
    (container)."""
    try:
        space = f"{BOOT_ID.read_text(encoding='ascii').strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        space = platform.node()
    return hashlib.blake2b(space.encode(), digest_size=6).hexdigest()


def own_name() -> str:
    return _own_name(os.getpid())


@cache
def _own_name(pid: int) -> str:
    return f"{pid}-{secrets.token_hex(4)}"


def is_same(pid: int, born_s: float) -> bool:
    now = birth_s(pid)
    return now is not None and abs(now - born_s) < SAME_BIRTH_S


def session_members(session: int) -> set[psutil.Process]:
    return {
        process for process in psutil.process_iter() if _session(process.pid) == session and alive(process)
    }


def descendants(pid: int) -> set[psutil.Process]:
    try:
        return {child for child in psutil.Process(pid).children(recursive=True) if alive(child)}
    except psutil.Error:
        return set()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_gone(processes: Iterable[psutil.Process], timeout_s: float) -> set[psutil.Process]:
    """Block until all have ended, for at most `timeout_s`; returns the rest."""
    deadline = time.monotonic() + timeout_s
    left = {process for process in processes if alive(process)}
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = {process for process in left if alive(process)}
    return left


def terminate(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM, except to reused pids."""
    for process in processes:
        try:
            process.terminate()
        except psutil.Error:
            continue


def kill(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> set[psutil.Process]:
    """Send SIGKILL, except to reused pids; waits for the end and returns those left.

    Trackers of Python's multiprocessing are killed last: once their users are gone, they unlink the users'
    shared memory and exit.
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


def raise_file_limit(needed: int) -> int:
    """Let this process open `needed` files if the hard limit allows it; return how many it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    most = needed if hard == resource.RLIM_INFINITY else max(soft, min(needed, hard))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        return soft
    return most


def name_thread(name: str) -> None:
    """Name the calling thread in the kernel (Linux keeps 15 characters). Python before 3.14 does not."""
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
