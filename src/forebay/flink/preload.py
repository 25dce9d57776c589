"""What every job imports inside Flink's JVM, imported while the job is still being checked and built.

Otherwise the first task does it when it opens, a second or longer, and all others wait.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from py4j.protocol import Py4JError
from pyflink.java_gateway import get_gateway

MODULES = (
    "pyflink.fn_execution.embedded.operations",
    "forebay.engine.client",
    "forebay.flink.operator",
)


def import_ahead() -> bool:
    """Have the Python inside this process's JVM import `MODULES`; blocks. False where that failed.

    As a task of Flink's does it: with an interpreter of its own, which is closed on the thread that made it.
    What it has imported stays for all later ones. To be called on a thread of its own; where anything goes
    wrong, the job does the same later and says why.
    """
    with suppress(Py4JError, OSError):
        core = get_gateway().jvm.pemja.core
        config = core.PythonInterpreterConfig.newBuilder().setPythonExec(sys.executable)
        config = config.setExcType(core.PythonInterpreterConfig.ExecType.MULTI_THREAD)
        python = core.PythonInterpreter(config.build())
        try:
            python.exec(f"import {', '.join(MODULES)}")
        finally:
            python.close()
        return True
    return False
