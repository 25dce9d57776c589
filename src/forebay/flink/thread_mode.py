"""Flink settings that every job needs: Python inside its JVM only, and few records between tasks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forebay.errors import SettingError

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

MODE = "python.execution-mode"
ONE_MODE = (
    "Python runs inside Flink's JVM: worker processes added ten times the delay, took a core when idle and "
    "could leave timers out of a checkpoint"
)
MODULES = (
    "pyflink.fn_execution.embedded.operations",
    "forebay.fleet.disaggregated",
    "forebay.flink.operator",
)


def check_environment(env: StreamExecutionEnvironment) -> None:
    """Raise `SettingError` if Python would run in worker processes."""
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    options = env._j_stream_execution_environment.getConfiguration()
    mode = options.get(jvm.org.apache.flink.python.PythonOptions.PYTHON_EXECUTION_MODE)
    if mode != "thread":
        raise SettingError(
            f"the environment's {MODE}: expected thread, found {mode}; {ONE_MODE}. Set it when you make the "
            f"environment, or take one from flink_environment"
        )


BEAM = "apache_beam"
FUNCTIONS = "pyflink.fn_execution"


def import_functions() -> None:
    if FUNCTIONS in sys.modules or BEAM in sys.modules:
        return
    sys.modules[BEAM] = None  # type: ignore[assignment]  # so that an import fails
    try:
        import_module(FUNCTIONS)
    finally:
        del sys.modules[BEAM]


def import_ahead(java: Any = None, more: Sequence[str] = ()) -> bool:
    """Import `MODULES` and `more` in the Python inside a JVM. Blocks. Returns whether it worked.

    Call it on a thread while the job is built; otherwise all tasks wait for a second or longer.
    """
    from py4j.protocol import Py4JError
    from pyflink.java_gateway import get_gateway

    with suppress(Py4JError, OSError):
        core = (get_gateway().jvm if java is None else java).pemja.core
        config = core.PythonInterpreterConfig.newBuilder().setPythonExec(sys.executable)
        config = config.setExcType(core.PythonInterpreterConfig.ExecType.MULTI_THREAD)
        python = core.PythonInterpreter(config.build())
        try:
            python.exec(f"from {__name__} import import_functions; import_functions()")
            python.exec(f"import {', '.join((*MODULES, *more))}")
        finally:
            python.close()
        return True
    return False


FEW_RECORDS: Mapping[str, str] = {
    # Records between operators leave at the engine's pace. After a restore, no checkpoint completes until the
    # restored ones have left. They are not in the count of a topic's backlog, either. Keep them few, also in
    # the first half minute, before the debloater has measured the pace.
    "taskmanager.memory.segment-size": "4 kb",
    "taskmanager.network.memory.buffer-debloat.enabled": "true",
    "taskmanager.network.memory.buffer-debloat.target": "300 ms",
    # It wakes each task, so a fifth as often as by default; the samples span as long.
    "taskmanager.network.memory.buffer-debloat.period": "1 s",
    "taskmanager.network.memory.buffer-debloat.samples": "4",
}
