"""Operator chains do not depend on the parallelism, or records in flight would be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.flink


@pytest.mark.parametrize("application", ["trends", "topics"])
def test_chains_end_with_the_same_operator_at_any_parallelism(
    application: str, tmp_path: Path, flink_logs: Path
) -> None:
    from forebay.apps.topics.embedding import NoEmbedding
    from forebay.apps.topics.graph import topic_events
    from forebay.apps.topics.values import TopicSettings
    from forebay.apps.trends.graph import trend_events
    from forebay.apps.trends.values import TrendSettings
    from forebay.connectors.files.source import Files, file_source
    from forebay.connectors.formats import Format
    from forebay.flink.environment import FlinkConfig, flink_environment
    from forebay.flink.keying import TextField
    from forebay.stateful.stream_time import Tolerance

    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')

    def chains(parallelism: int) -> set[str]:
        env = flink_environment(FlinkConfig(log_dir=flink_logs, heap_mb=768, parallelism=parallelism))
        stream = file_source(env, Files(tmp_path / "in.jsonl", Format()))
        text = TextField("text")
        if application == "trends":
            found = trend_events(
                stream,
                TrendSettings(),
                text,
                tolerance=Tolerance(),
                shards=4,
                parallelism=parallelism,
                name="t",
            )
        else:
            found, assignments = topic_events(
                stream, TopicSettings(), text, NoEmbedding, wait_ms=100, shards=4, parallelism=parallelism,
                name="t",
            )  # fmt: skip
            assignments.print()
        # As in a pipeline: what has two inputs is chained to neither.
        found.messages.union(found.refused).print()
        graph = env._generate_stream_graph(job_name="t").getJobGraph()
        names = {vertex.getName() for vertex in graph.getVerticesAsArray()}
        return {name for name in names if "Print" not in name}

    assert chains(1) == chains(2)
