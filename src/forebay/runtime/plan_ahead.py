"""What a job with topics loads to be planned, loaded while Kafka is still being asked.

Topics are tables, and Flink's planner takes longest the first time that it plans one.
"""

from __future__ import annotations

from contextlib import suppress

from forebay.config.spec import PipelineSpec
from forebay.connectors.base import Written
from forebay.connectors.kafka.settings import KafkaSource
from forebay.flink.environment import FlinkConfig, flink_environment
from forebay.runtime.job_graph import connector_jars
from forebay.runtime.kafka_transactions import NAMES
from forebay.settings import Settings


def plan_ahead(spec: PipelineSpec, settings: Settings) -> bool:
    """Plan the topics of `spec` for a job that is never submitted; blocks. False where there are none, or
    where that failed. Needs this process's JVM; to be called on a thread of its own."""
    if not (isinstance(spec.source, KafkaSource) or spec.topics()):
        return False
    # Whatever it is, the job meets it as well, and says so.
    with suppress(Exception):
        config = FlinkConfig(log_dir=settings.run / "flink", jars=connector_jars(spec, settings))
        env = flink_environment(config)
        if isinstance(spec.source, KafkaSource):
            stream = spec.source.stream(env, spec)
        else:
            stream = env.from_collection([b""])
        for key, sink in spec.topics().items():
            sink.attach(stream, Written(NAMES[key], spec.name))
        return True
    return False
