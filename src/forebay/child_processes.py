"""Ending with the process that started one, however that ends."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

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
