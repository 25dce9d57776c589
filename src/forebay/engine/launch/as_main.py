"""Runs a module as the main program, in the engine's environment, and ends what it starts with it.

A server that is killed leaves its workers: they hold the machine's memory and wait for orders for ever. So
each process that the module forks, or starts by Python's multiprocessing, has the kernel kill it when its
parent dies. (multiprocessing imports its parent's main program, which is this file, before all else. The
tracker of shared memory is started in another way: it stays until it has cleaned up.)

Uses nothing but the standard library: the engine's environment has no Forebay.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT = "FOREBAY_ENGINE_PARENT"
"""The number of the process that is to start others: theirs, once they run."""


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; end at once if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT) != str(os.getppid()):
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())


def main() -> None:
    """Run the module that the first argument names, with the others as its own."""
    module, sys.argv = sys.argv[1], sys.argv[1:]
    # In a namespace of its own: the main program, which children import, stays this file.
    runpy.run_module(module, run_name="__main__", alter_sys=False)


if sys.platform == "linux":
    if __name__ == "__mp_main__":
        end_with_parent()
    os.environ[PARENT] = str(os.getpid())
    os.register_at_fork(after_in_child=end_with_parent)
if __name__ == "__main__":
    main()
