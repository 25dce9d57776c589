"""Kafka topics as a source and as a sink, through Flink's own connector.

The connector is used as a table of raw bytes: that is where Python sees a record's key, headers, timestamp,
partition and offset, and where a value that cannot be parsed still arrives. What is parsed, is parsed here.
"""

from typing import TYPE_CHECKING

from forebay.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay.connectors.kafka.cluster import KafkaCluster as KafkaCluster
    from forebay.connectors.kafka.registry import Registry as Registry
    from forebay.connectors.kafka.sink import KafkaSink as KafkaSink
    from forebay.connectors.kafka.sink import kafka_sink as kafka_sink
    from forebay.connectors.kafka.source import KafkaSource as KafkaSource
    from forebay.connectors.kafka.source import kafka_source as kafka_source

_HOMES = {
    "KafkaCluster": "cluster",
    "KafkaSink": "sink",
    "KafkaSource": "source",
    "Registry": "registry",
    "kafka_sink": "sink",
    "kafka_source": "source",
}
__all__ = ["KafkaCluster", "KafkaSink", "KafkaSource", "Registry", "kafka_sink", "kafka_source"]

if not TYPE_CHECKING:  # Otherwise a checker would take any name.
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
