"""Write and read a few records of a topic without a job, for demos.

Uses the Java clients in the connector's jar, which must be on the class path of this process's JVM: some
thousands of records a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.admin import KafkaAway
from forebay.connectors.kafka.cluster import SHADED, KafkaCluster

MAX_RECORD_BYTES = 8_000_000
CLOSE_S = 10
POLL_MS = 200


class KafkaWriter:
    def __init__(self, cluster: KafkaCluster, topic: str, producer: Any) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producer = producer
        self._record = _shaded("clients.producer.ProducerRecord")
        self._last: Any = None

    def write(self, value: bytes) -> None:
        """Blocks while the client's buffer is full."""
        with _named_errors(self._cluster):
            self._last = self._producer.send(self._record(self._topic, value))

    def flush(self) -> None:
        """Blocks until all is written. Raises `KafkaAway` if the last record was rejected."""
        with _named_errors(self._cluster):
            self._producer.flush()
            if self._last is not None:
                self._last.get()


@contextmanager
def kafka_writer(cluster: KafkaCluster, topic: str) -> Iterator[KafkaWriter]:
    """Waits for all replicas and writes no record twice (Kafka's defaults)."""
    plain = _shaded("common.serialization.ByteArraySerializer")
    properties = _properties(
        cluster, {"max.request.size": str(MAX_RECORD_BYTES), "client.id": f"{topic}-writer"}
    )
    with _named_errors(cluster):
        producer = _shaded("clients.producer.KafkaProducer")(properties, plain(), plain())
    try:
        yield KafkaWriter(cluster, topic, producer)
    finally:
        _close(producer)


READ_S = 30.0


def read_committed(cluster: KafkaCluster, topic: str) -> Iterator[bytes]:
    """All committed records now in the topic, in order within each partition.

    Blocks; raises `KafkaAway` if no record arrives for `READ_S`.
    """
    kafka, jvm = _shaded("common"), get_gateway().jvm
    plain = kafka.serialization.ByteArrayDeserializer
    properties = _properties(cluster, {"isolation.level": "read_committed"})
    with _named_errors(cluster):
        consumer = _shaded("clients.consumer.KafkaConsumer")(properties, plain(), plain())
    try:
        with _named_errors(cluster):
            wait = jvm.java.time.Duration.ofMillis(POLL_MS)
            partitions = jvm.java.util.ArrayList()
            for found in consumer.partitionsFor(topic):
                partitions.append(kafka.TopicPartition(topic, found.partition()))
            ends = consumer.endOffsets(partitions)
            for partition in partitions:
                only = jvm.java.util.ArrayList()
                only.append(partition)
                consumer.assign(only)
                consumer.seekToBeginning(only)
                still_s = 0.0
                while consumer.position(partition) < ends[partition]:
                    records = consumer.poll(wait)
                    still_s = still_s + POLL_MS / 1000 if records.isEmpty() else 0.0
                    if still_s > READ_S:
                        raise KafkaAway(
                            f"Kafka at {cluster.bootstrap} returned no record of {topic!r} for {READ_S:g} s"
                        )
                    for record in records.records(partition):
                        yield bytes(record.value() or b"")
    finally:
        _close(consumer)


def _properties(cluster: KafkaCluster, more: Mapping[str, str]) -> Any:
    properties = get_gateway().jvm.java.util.Properties()
    for name, value in {**cluster.client_properties(), **more}.items():
        properties.put(name, value)
    return properties


@contextmanager
def _named_errors(cluster: KafkaCluster) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        said = str(cause.getMessage() or cause.getClass().getSimpleName())
        raise KafkaAway(f"Kafka at {cluster.bootstrap} does not answer: {said}") from None


def _close(client: Any) -> None:
    with suppress(Py4JError):
        client.close(get_gateway().jvm.java.time.Duration.ofSeconds(CLOSE_S))


def _shaded(path: str) -> Any:
    found: Any = get_gateway().jvm
    for name in (*SHADED.split("."), *path.split(".")):
        found = getattr(found, name)
    return found
