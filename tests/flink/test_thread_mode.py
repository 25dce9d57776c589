"""Worker processes are refused before a job starts, and so are the checkpoints that they left."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.programs import Remember

from forebay.errors import SettingError
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

    from forebay.flink.environment import FlinkConfig

pytestmark = pytest.mark.flink


@pytest.fixture
def config(flink_logs: Path, tmp_path: Path) -> FlinkConfig:
    from forebay.flink.environment import FlinkConfig, flink_environment

    config = FlinkConfig(checkpoint_dir=tmp_path, checkpoint_interval_s=0.2, log_dir=flink_logs, heap_mb=768)
    flink_environment(config)
    return config


def asks(env: StreamExecutionEnvironment) -> None:
    from forebay.flink.infer import infer

    infer(env.from_collection([b""]), None)  # type: ignore[arg-type]


def remembers(env: StreamExecutionEnvironment) -> None:
    from forebay.flink.infer import infer_stateful

    infer_stateful(env.from_collection([b""]), Remember(), None, key=str)  # type: ignore[arg-type]


def finds_topics(env: StreamExecutionEnvironment) -> None:
    from forebay.apps.topics.graph import topic_events
    from forebay.apps.topics.values import TopicSettings
    from forebay.embed import NoEmbedding
    from forebay.flink.keying import TextField

    stream = env.from_collection([b""])
    topic_events(stream, TopicSettings(), TextField(), NoEmbedding, wait_ms=1, name="topics")


def finds_trends(env: StreamExecutionEnvironment) -> None:
    from forebay.apps.trends.graph import trend_events
    from forebay.apps.trends.values import TrendSettings
    from forebay.detect.stream_time import Tolerance
    from forebay.flink.keying import TextField

    stream = env.from_collection([b""])
    tolerance = Tolerance(1, 1)
    trend_events(
        stream, TrendSettings(), TextField(), tolerance=tolerance, shards=1, parallelism=1, name="trends"
    )


@pytest.mark.parametrize("build", [asks, remembers, finds_topics, finds_trends])
@pytest.mark.parametrize("mode", [None, "process"])
def test_an_environment_in_process_mode_is_refused_with_what_to_set(
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


def counted(env: StreamExecutionEnvironment, checkpoints: Path) -> Path:
    """A checkpoint of a job in `env` that keeps a count."""
    from pyflink.common import Types
    from pyflink.datastream import KeyedProcessFunction
    from pyflink.datastream.state import ValueStateDescriptor

    from forebay.connectors.python_source import calls
    from forebay.flink.environment import newest_checkpoint

    class Count(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.state = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> Any:
            time.sleep(0.02)  # Calls come one after another, without end.
            self.state.update((self.state.value() or 0) + 1)
            yield value

    calls(env, name="calls").process(Count()).print()
    job = env.execute_async("test")
    seen: set[Path] = set()

    def came() -> bool:
        newest = newest_checkpoint(checkpoints)
        seen.update((newest,) if newest is not None else ())
        return len(seen) >= 3  # The first may be of before a count.

    wait_until(came)
    job.cancel()
    with suppress(Exception):  # A cancelled job ends with an error that says so.
        job.get_job_execution_result().result()
    found = newest_checkpoint(checkpoints)
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_checkpoint_of_worker_processes_is_refused_before_the_job_starts(
    config: FlinkConfig, tmp_path: Path, mode: str, backend: str
) -> None:
    from pyflink.common import Configuration

    from forebay.flink.environment import flink_environment

    options = {"state.backend.type": backend, "execution.checkpointing.incremental": "true"}
    config = replace(config, options=options)
    env = flink_environment(config)
    env.configure(Configuration().set_string("python.execution-mode", mode))
    checkpoint = counted(env, tmp_path)
    restored = flink_environment(replace(config, restore_from=checkpoint))
    if mode == "thread":
        asks(restored)
        return
    with pytest.raises(SettingError, match=f"{checkpoint} was made with Python in worker processes"):
        asks(restored)
