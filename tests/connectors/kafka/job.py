"""A job from topic to topic in its own process, so that it can be killed: `job.py ORDER.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from forebay.connectors.formats import Format
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.sink import TopicSink, kafka_sink
from forebay.connectors.kafka.source import TopicSource, kafka_source
from forebay.engine.prompt import PromptTemplate
from forebay.flink.checkpoints import newest_checkpoint
from forebay.flink.environment import FlinkConfig, Restart, flink_environment
from forebay.flink.infer import infer
from forebay.flink.request_handler import InferenceSpec
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Mixture


def main(order: dict[str, str]) -> None:
    state = Path(order["state"])
    env = flink_environment(
        FlinkConfig(
            parallelism=int(order["parallelism"]),
            checkpoint_dir=state,
            checkpoint_interval_s=0.5,
            restore_from=newest_checkpoint(state),
            restart=Restart(attempts=None, delay_s=0.5),
            log_dir=Path(order["logs"]),
            heap_mb=768,
            jars=(Path(order["jar"]),),
        )
    )
    cluster = KafkaCluster(order["bootstrap"])
    source = TopicSource(cluster, Format(), topics=(order["source"],), group=order["source"])
    call = InferenceSpec(
        ScriptedEngineFactory(Mixture(((0.95, 0.01), (0.05, 0.3)))),
        model="m",
        prompt=PromptTemplate("{{ text }}"),
    )
    answered = infer(kafka_source(env, source), call, capacity=16)
    kafka_sink(
        answered.results, TopicSink(cluster, order["results"], transactions=f"{order['source']}-results")
    )
    kafka_sink(
        answered.dead_letters, TopicSink(cluster, order["letters"], transactions=f"{order['source']}-letters")
    )
    env.execute("from topic to topic")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
