"""Kafka's Java clients in this process's JVM, which needs the connector's jar on its class path."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from operator import itemgetter
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.admin import (
    CALL_TIMEOUT_S,
    START_TIMEOUT_S,
    KafkaAway,
    Place,
    Transaction,
    class_names,
    client_properties,
    java_list,
    shaded,
)
from forebay.connectors.kafka.cluster import SHADED, KafkaCluster

MAX_RECORD_BYTES = 8_000_000
CLOSE_S = 10
POLL_MS = 200


class KafkaWriter:
    def __init__(self, cluster: KafkaCluster, topic: str, producer: Any) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producer = producer
        self._record = shaded("clients.producer.ProducerRecord")
        self._last: Any = None

    def write(self, value: bytes, key: bytes | None = None) -> None:
        """Blocks while the client's buffer is full."""
        with _named_errors(self._cluster):
            self._last = self._producer.send(self._record(self._topic, key, value))

    def flush(self) -> None:
        """Blocks. Raises `KafkaAway` if the last record was rejected."""
        with _named_errors(self._cluster):
            self._producer.flush()
            if self._last is not None:
                self._last.get()


@contextmanager
def kafka_writer(cluster: KafkaCluster, topic: str) -> Iterator[KafkaWriter]:
    """Waits for all replicas and writes no record twice (Kafka's defaults)."""
    plain = shaded("common.serialization.ByteArraySerializer")
    more = {"max.request.size": str(MAX_RECORD_BYTES), "client.id": f"{topic}-writer"}
    properties = client_properties(cluster, more=more)
    with _named_errors(cluster):
        producer = shaded("clients.producer.KafkaProducer")(properties, plain(), plain())
    try:
        yield KafkaWriter(cluster, topic, producer)
    finally:
        _close(producer)


READ_S = 30.0


class FollowedTopic:
    """The committed records of a topic, each once, as they appear.

    Of those that are there at first, only the `newest` are read, as many of each partition; None: all.
    Methods block, and raise `KafkaAway`.
    """

    def __init__(self, cluster: KafkaCluster, topic: str, newest: int | None = None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._newest = newest
        self._partitions: list[Any] = []
        self._read: deque[tuple[int, bytes]] = deque()
        self._consumer: Any = None

    def new(self) -> Iterator[bytes]:
        """The values up to the present end, by their times; a tombstone is empty."""
        with _named_errors(self._cluster):
            if self._consumer is None:
                self._consumer = self._open()
            consumer, wait = self._consumer, get_gateway().jvm.java.time.Duration.ofMillis(POLL_MS)
            self._assign()
            ends = consumer.endOffsets(java_list(self._partitions))
            still_s = 0.0
            while any(consumer.position(each) < ends[each] for each in self._partitions):
                records = consumer.poll(wait)
                still_s = still_s + POLL_MS / 1000 if records.isEmpty() else 0.0
                if still_s > READ_S:
                    raise KafkaAway(
                        f"Kafka at {self._cluster.bootstrap} returned no record of {self._topic!r} for "
                        f"{READ_S:g} s"
                    )
                for record in records.iterator():
                    self._read.append((record.timestamp(), bytes(record.value() or b"")))
        self._read = deque(sorted(self._read, key=itemgetter(0)))
        # The caller may stop between two.
        while self._read:
            yield self._read.popleft()[1]

    def _open(self) -> Any:
        more = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        more["metadata.max.age.ms"] = str(round(CALL_TIMEOUT_S * 1000))
        plain = shaded("common.serialization.ByteArrayDeserializer")
        properties = client_properties(self._cluster, CALL_TIMEOUT_S, more)
        return shaded("clients.consumer.KafkaConsumer")(properties, plain(), plain())

    def _assign(self) -> None:
        """Add the partitions that are new."""
        made, known = shaded("common.TopicPartition"), len(self._partitions)
        there = len(self._consumer.partitionsFor(self._topic))
        added = [made(self._topic, number) for number in range(known, there)]
        if not added:
            return
        self._partitions += added
        self._consumer.assign(java_list(self._partitions))
        begins = self._consumer.beginningOffsets(java_list(added))
        ends = self._consumer.endOffsets(java_list(added))
        for each in added:
            begin = begins[each]
            if self._newest is not None and not known:
                begin = max(begin, ends[each] - max(self._newest // len(added), 1))
            self._consumer.seek(each, begin)

    def close(self) -> None:
        if self._consumer is not None:
            _close(self._consumer)


def read_committed(cluster: KafkaCluster, topic: str) -> Iterator[bytes]:
    """As `FollowedTopic.new`."""
    with closing(FollowedTopic(cluster, topic)) as followed:
        yield from followed.new()


@contextmanager
def _named_errors(cluster: KafkaCluster) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        detail = str(cause.getMessage() or cause.getClass().getSimpleName())
        raise KafkaAway(f"Kafka at {cluster.bootstrap} does not answer: {detail}") from None


def _close(client: Any) -> None:
    with suppress(Py4JError):
        client.close(get_gateway().jvm.java.time.Duration.ofSeconds(CLOSE_S))


def all_read(
    cluster: KafkaCluster,
    committed: Iterable[Place],
    ends: Iterable[Place],
    isolation: str = "read_committed",
    timeout_s: float = CALL_TIMEOUT_S,
) -> bool:
    """Whether no record is left between `committed` and `ends`; blocks. False if Kafka does not answer.

    The end of a transaction takes an offset without being a record, so the rest must be read.
    """
    done = {(place.topic, place.partition): place.offset for place in committed}
    gaps = [end for end in ends if done.get((end.topic, end.partition), 0) < end.offset]
    if not gaps:
        return True
    if any((end.topic, end.partition) not in done for end in gaps):
        return False
    plain, wait = shaded("common.serialization.ByteArrayDeserializer"), get_gateway().jvm.java.time.Duration
    properties = client_properties(
        cluster,
        timeout_s,
        # If records were deleted, the source continues at the oldest one left.
        {"max.poll.records": "1", "isolation.level": isolation, "auto.offset.reset": "earliest"},
    )
    try:
        consumer = shaded("clients.consumer.KafkaConsumer")(properties, plain(), plain())
    except (Py4JError, OSError):
        return False
    try:
        made = shaded("common.TopicPartition")
        partitions = {made(end.topic, end.partition): end.offset for end in gaps}
        consumer.assign(java_list(partitions))
        for partition in partitions:
            consumer.seek(partition, done[partition.topic(), partition.partition()])
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if not consumer.poll(wait.ofMillis(POLL_MS)).isEmpty():
                return False
            if all(consumer.position(partition) >= end for partition, end in partitions.items()):
                return True
        return False
    except (Py4JError, OSError):
        return False
    finally:
        with suppress(Py4JError, OSError):
            consumer.close(wait.ofSeconds(1))


SERIALIZER = f"{SHADED}.common.serialization.ByteArraySerializer"
ENDED = frozenset(("ProducerFencedException", "InvalidProducerEpochException", "InvalidTxnStateException"))


def commit(
    cluster: KafkaCluster, id: str, transaction: Transaction, timeout_s: float = START_TIMEOUT_S
) -> bool:
    """Commit a transaction that another process has begun and can no longer end; blocks. False if it was
    aborted, if a transaction of the same id has begun since, or, with some brokers, if it was committed.

    Raises `KafkaAway` after `timeout_s`; it may still be committed then.
    """
    more = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER}
    more["max.block.ms"] = str(round(timeout_s * 1000))
    properties = client_properties(cluster, timeout_s, more)
    internal = get_gateway().jvm.org.apache.flink.connector.kafka.sink.internal
    producer = internal.FlinkKafkaInternalProducer(properties, id)
    try:
        producer.resumeTransaction(transaction.producer_id, transaction.epoch)
        producer.commitTransaction()
    except Py4JJavaError as error:
        if ENDED & set(class_names(error.java_exception)):
            return False
        raise KafkaAway(
            f"Kafka at {cluster.bootstrap} did not commit transaction {id}: "
            f"{error.java_exception.getMessage()}"
        ) from None
    finally:
        with suppress(Py4JError, OSError):
            producer.close()
    return True
