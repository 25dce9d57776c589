"""Modules that a job imports in the JVM can be imported in advance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASKED = """
import sys
from pathlib import Path
from py4j.protocol import Py4JError
from pyflink.java_gateway import get_gateway
from forebay.flink.thread_mode import MODULES, import_ahead
from forebay.flink.jvm import jvm_process, start_jvm

start_jvm(Path(sys.argv[1]), heap_mb=256)

def holds(condition):
    # An interpreter of another task's.
    core = get_gateway().jvm.pemja.core
    config = core.PythonInterpreterConfig.newBuilder().setPythonExec(sys.executable)
    config.setExcType(core.PythonInterpreterConfig.ExecType.MULTI_THREAD)
    python = core.PythonInterpreter(config.build())
    try:
        python.exec(f"import sys; assert {condition}")
        return True
    except Py4JError:
        return False
    finally:
        python.close()

there = f"set({MODULES}) <= set(sys.modules)"
there += " and not {'apache_beam', 'pyarrow', 'pandas'} & set(sys.modules)"
print(holds(there), import_ahead(), holds(there))
import os, signal
os.kill(jvm_process()[0], signal.SIGKILL)
print(import_ahead())
"""


@pytest.mark.flink
def test_preload_serves_later_tasks_and_survives_the_jvms_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True", "True", "False"], done.stderr


WITHOUT_BEAM = """
import sys
from forebay.flink.thread_mode import import_functions

import_functions()
from pyflink import fn_execution
from pyflink.fn_execution import flink_fn_execution_pb2

print(any(name.startswith("apache_beam") for name in sys.modules), fn_execution.PYFLINK_CYTHON_ENABLED)
import apache_beam.version

import_functions()
print("apache_beam" in sys.modules)
"""
WITH_BEAM = """
import sys
from types import ModuleType
from forebay.flink.thread_mode import import_functions

sys.modules["apache_beam"] = beam = ModuleType("apache_beam")
import_functions()
print(sys.modules.get("apache_beam") is beam)
"""


def test_functions_are_imported_without_beam() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_BEAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


def test_imported_beam_stays() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_BEAM], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr
