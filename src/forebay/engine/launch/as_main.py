"""Run a module as the main program in the engine's environment, and end its child processes with it.

The workers of a killed server would keep the machine's memory. So the kernel kills each process that the
module forks or starts with multiprocessing when its parent dies. Imports the standard library only: the
engine's environment has no Forebay.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT = "FOREBAY_ENGINE_PARENT"


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; exit if it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT) != str(os.getppid()):
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())


def main() -> None:
    module, sys.argv = sys.argv[1], sys.argv[1:]
    # With its own globals: the main program, which children import, stays this file.
    runpy.run_module(module, run_name="__main__", alter_sys=False)


if sys.platform == "linux":
    if __name__ == "__mp_main__":
        end_with_parent()
    os.environ[PARENT] = str(os.getpid())
    os.register_at_fork(after_in_child=end_with_parent)
if __name__ == "__main__":
    main()
