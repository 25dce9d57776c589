"""Python runs inside the JVM only, and its modules can be imported in advance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.programs import Remember

from forebay.errors import SettingError

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

    from forebay.flink.environment import FlinkConfig
    from forebay.flink.request_handler import InferenceSpec

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

there = f"{{*{MODULES}, 'jsonschema'}} <= set(sys.modules)"
there += " and not {'apache_beam', 'pyarrow', 'pandas'} & set(sys.modules)"
print(holds(there), import_ahead(more=["jsonschema"]), holds(there))
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


@pytest.mark.heavy
def test_functions_are_imported_without_beam() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_BEAM], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "False", "True"], done.stderr


def test_imported_beam_stays() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_BEAM], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr


@pytest.fixture
def config(flink_logs: Path, tmp_path: Path) -> FlinkConfig:
    from forebay.flink.environment import FlinkConfig, flink_environment

    config = FlinkConfig(checkpoint_dir=tmp_path, checkpoint_interval_s=0.2, log_dir=flink_logs, heap_mb=768)
    flink_environment(config)
    return config


def _call() -> InferenceSpec:
    from forebay.engine.client import HttpEngine
    from forebay.flink.request_handler import InferenceSpec

    return InferenceSpec(partial(HttpEngine, "http://x"), "m")


def asks(env: StreamExecutionEnvironment) -> None:
    from forebay.flink.infer import infer

    infer(env.from_collection([b""]), _call())


def remembers(env: StreamExecutionEnvironment) -> None:
    from forebay.flink.infer import infer_stateful

    infer_stateful(env.from_collection([b""]), Remember(), _call(), key=str)


def finds_topics(env: StreamExecutionEnvironment) -> None:
    from forebay.apps.topics.embedding import NoEmbedding
    from forebay.apps.topics.graph import topic_events
    from forebay.apps.topics.values import TopicSettings
    from forebay.flink.keying import TextField

    stream = env.from_collection([b""])
    topic_events(stream, TopicSettings(), TextField(), NoEmbedding, wait_ms=1, name="topics")


def finds_trends(env: StreamExecutionEnvironment) -> None:
    from forebay.apps.trends.graph import trend_events
    from forebay.apps.trends.values import TrendSettings
    from forebay.flink.keying import TextField
    from forebay.stateful.stream_time import Tolerance

    stream = env.from_collection([b""])
    tolerance = Tolerance(1, 1)
    trend_events(
        stream, TrendSettings(), TextField(), tolerance=tolerance, shards=1, parallelism=1, name="trends"
    )


@pytest.mark.flink
@pytest.mark.parametrize("build", [asks, remembers, finds_topics, finds_trends])
@pytest.mark.parametrize("mode", [None, "process"])
def test_process_mode_is_rejected_with_the_fix(
    config: FlinkConfig, build: Callable[[Any], None], mode: str | None
) -> None:
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment

    made = Configuration()
    if mode is not None:
        made.set_string("python.execution-mode", mode)
    env = StreamExecutionEnvironment.get_execution_environment(made)
    with pytest.raises(SettingError) as refused:
        build(env)
    assert "python.execution-mode: expected thread, found process; Python runs inside" in str(refused.value)
    assert str(refused.value).endswith("or take one from flink_environment")
    made.set_string("python.execution-mode", "thread")
    build(StreamExecutionEnvironment.get_execution_environment(made))
