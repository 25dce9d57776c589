"""Kafka's Java clients in this process's JVM, which needs the connector's jar on its class path."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    call_failed,
    class_names,
    client_properties,
    java_list,
    not_created,
    shaded,
)
from forebay.connectors.kafka.cluster import SHADED, KafkaCluster
from forebay.errors import SettingError

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
        """Blocks. Raises `KafkaAway` or `KafkaRefused` if the last record was rejected."""
        with _named_errors(self._cluster):
            self._producer.flush()
            if self._last is not None:
                self._last.get()


@contextmanager
def kafka_writer(cluster: KafkaCluster, topic: str) -> Iterator[KafkaWriter]:
    """Waits for all replicas and writes no record twice (Kafka's defaults)."""
    more = {"max.request.size": str(MAX_RECORD_BYTES), "client.id": f"{topic}-writer"}
    properties = client_properties(cluster, more=more)
    producer = _created(cluster, "producer.KafkaProducer", properties, "ByteArraySerializer")
    try:
        yield KafkaWriter(cluster, topic, producer)
    finally:
        _close(producer)


READ_S = 30.0
LEAST_RECORDS = 500
"""Read of each partition at first: all records of a key are in one."""
MOST_RECORDS = 5000
"""Per call, about a second's work."""
MOST_BYTES = 64 << 20


class FollowedTopic:
    """The committed records of a topic, each once, as they appear.

    At first, about the `newest` are read, but at least `LEAST_RECORDS` of each partition; None: all.
    `partial`: whether older ones exist or existed.

    Methods block, and raise `KafkaAway`, `KafkaRefused`, or `SettingError` if there is no such topic.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        newest: int | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._newest = newest
        self._monotonic_s = monotonic_s
        self._partitions: list[Any] = []
        self._read: deque[tuple[int, bytes]] = deque()
        self._consumer: Any = None
        self.partial = False

    def new(self) -> Iterator[bytes]:
        """The values up to the present end, by their times; a tombstone is empty. At most about
        `MOST_RECORDS` or `MOST_BYTES`."""
        first = self._consumer is None
        with _named_errors(self._cluster):
            ends = self._ends()
        while True:
            with _named_errors(self._cluster):
                more = self._fetch(ends) and first
            # The caller may stop between two.
            while self._read:
                yield self._read.popleft()[1]
            if not more:
                return

    def skip(self) -> None:
        with _named_errors(self._cluster):
            for each, end in self._ends().items():
                self._consumer.seek(each, end)
        self._read.clear()

    def _fetch(self, ends: dict[Any, int]) -> bool:
        consumer, wait = self._consumer, get_gateway().jvm.java.time.Duration.ofMillis(POLL_MS)
        size = sum(len(value) for _, value in self._read)
        before, moved_s, more = list[int](), self._monotonic_s(), True
        while len(self._read) < MOST_RECORDS and size < MOST_BYTES:
            places = [consumer.position(each) for each in ends]
            more = any(place < end for place, end in zip(places, ends.values(), strict=True))
            if not more:
                break
            # Also the records of an aborted transaction move the position.
            if places != before:
                before, moved_s = places, self._monotonic_s()
            elif self._monotonic_s() - moved_s > READ_S:
                raise KafkaAway(
                    f"Kafka at {self._cluster.bootstrap} returned no record of {self._topic!r} for "
                    f"{READ_S:g} s"
                )
            for record in consumer.poll(wait).iterator():
                value = bytes(record.value() or b"")
                size += len(value)
                self._read.append((record.timestamp(), value))
        self._read = deque(sorted(self._read, key=itemgetter(0)))
        return more

    def _ends(self) -> dict[Any, int]:
        if self._consumer is None:
            self._consumer = self._open()
        self._assign()
        found = self._consumer.endOffsets(java_list(self._partitions))
        ends = {each: int(found[each]) for each in self._partitions}
        # The topic was deleted and created again.
        again = [each for each in ends if self._consumer.position(each) > ends[each]]
        self._seek(self._begins(again, self._newest))
        return ends

    def _open(self) -> Any:
        more = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        more["allow.auto.create.topics"] = "false"
        more["metadata.max.age.ms"] = str(round(CALL_TIMEOUT_S * 1000))
        properties = client_properties(self._cluster, CALL_TIMEOUT_S, more)
        return _created(self._cluster, "consumer.KafkaConsumer", properties, "ByteArrayDeserializer")

    def _assign(self) -> None:
        made, there = shaded("common.TopicPartition"), len(self._consumer.partitionsFor(self._topic))
        if not there:
            raise SettingError(
                f"Kafka at {self._cluster.bootstrap} has no topic {self._topic!r} that this client may see; "
                f"create it first, or let the client read it"
            )
        kept = self._partitions[:there]
        added = [made(self._topic, number) for number in range(len(kept), there)]
        if not added and kept == self._partitions:
            return
        begins = self._begins(added, None if kept else self._newest)
        self._consumer.assign(java_list([*kept, *added]))
        self._seek(begins)
        if not kept:
            self.partial = any(begins.values())
        self._partitions = [*kept, *added]

    def _begins(self, partitions: list[Any], newest: int | None) -> dict[Any, int]:
        if not partitions:
            return {}
        begins = self._consumer.beginningOffsets(java_list(partitions))
        if newest is None:
            return {each: int(begins[each]) for each in partitions}
        ends, share = self._consumer.endOffsets(java_list(partitions)), newest // len(partitions)
        return {each: max(begins[each], ends[each] - max(share, LEAST_RECORDS)) for each in partitions}

    def _seek(self, begins: Mapping[Any, int]) -> None:
        for each, begin in begins.items():
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
        raise call_failed(cluster, error) from None


def _created(cluster: KafkaCluster, client: str, properties: Any, bytes_class: str) -> Any:
    plain = shaded(f"common.serialization.{bytes_class}")
    try:
        return shaded(f"clients.{client}")(properties, plain(), plain())
    except Py4JJavaError as error:
        raise not_created(cluster, error) from None


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

    The end of a transaction takes an offset, so the rest must be read.
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
    """Commit a transaction of another process that can no longer end it; blocks.

    False if it was aborted, if a transaction of the same id has begun since, or, with some brokers, if it
    was committed. Raises `KafkaAway` after `timeout_s`; it may still be committed then.
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
