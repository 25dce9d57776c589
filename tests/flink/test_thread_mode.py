"""Process mode is rejected before a job starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.programs import Remember

from forebay.errors import SettingError

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
