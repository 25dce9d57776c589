"""Creates, writes and reads topics with an independent client (`confluent-kafka`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from forebay.testing.waiting import wait_until

WAIT_S = 180.0
FETCH_WAIT_MS = 20
MAX_RECORD_BYTES = 20_000_000


def make_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(WAIT_S)


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([name])[name].result(WAIT_S)
    wait_until(lambda: name not in admin.list_topics(timeout=WAIT_S).topics, WAIT_S)


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[dict[str, Any]],
    *,
    transaction: str | None = None,
    commit: bool = True,
) -> None:
    """Write records: `value`, and optionally `key`, `headers`, `partition`, `timestamp`; blocks
    until all are acknowledged."""
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "message.max.bytes": MAX_RECORD_BYTES}
    producer = Producer(config if transaction is None else {**config, "transactional.id": transaction})
    if transaction is not None:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    for record in records:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.flush(WAIT_S)
            producer.produce(topic, **record)
    if transaction is not None and not commit:
        # Unsent records are dropped with the transaction; sent ones stay as aborted records.
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)
    elif transaction is not None:
        producer.commit_transaction(WAIT_S)
    elif producer.flush(WAIT_S):
        raise TimeoutError(f"{topic} did not accept all records within {WAIT_S:.0f} s")


def delete_before(bootstrap: str, topic: str, offset: int, *, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    at = TopicPartition(topic, partition, offset)
    admin.delete_records([at])[at].result(WAIT_S)


class TopicReader:
    """Reads the committed records of a topic from its beginning, incrementally. `fetch_wait_ms`:
    how long the broker waits for more before it reports the end."""

    def __init__(self, bootstrap: str, topic: str, *, fetch_wait_ms: int = 500) -> None:
        self._topic = topic
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._next: dict[int, int] = {}
        self._partitions: list[int] = []
        self.complete = False
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": fetch_wait_ms,
                "log_level": 0,
            }
        )

    def messages(self, timeout_s: float = WAIT_S) -> list[Message]:
        """The records committed since the last call, by partition, in order."""
        self.complete = False
        try:
            there = self._consumer.list_topics(self._topic, timeout_s).topics[self._topic].partitions
        except KafkaException:
            return []
        self._partitions = sorted(there)
        self._consumer.assign([TopicPartition(self._topic, n, self._next.get(n, 0)) for n in there])
        open_, found = set(there), []
        while open_:
            message = self._consumer.poll(timeout_s)
            if message is None:
                break
            error = message.error()
            if error is None:
                found.append(message)
                self._next[message.partition() or 0] = (message.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                open_.discard(message.partition())
        self.complete = not open_
        self._consumer.unassign()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def read(self) -> list[tuple[float, bytes]]:
        """Wall-clock write time in seconds, and value, of each new record."""
        return _timed(self.messages(timeout_s=5.0))

    def to_the_end(self) -> list[tuple[float, bytes]]:
        """The same for all remaining records."""
        return _timed(self.rest())

    def rest(self) -> list[Message]:
        """All remaining records, once no transaction is open."""
        found = []
        until_s = time.monotonic() + WAIT_S
        while True:
            found += self.messages(timeout_s=5.0)
            if self.complete and not (open_ := self._behind_open_transactions()):
                return found
            if time.monotonic() > until_s:
                what = f"partitions {open_} end in an open transaction" if self.complete else "no answer"
                raise TimeoutError(f"{self._topic} cannot be read to its end: {what} for {WAIT_S:.0f} s")

    def _behind_open_transactions(self) -> list[int]:
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = [
            self._admin.list_offsets(
                {TopicPartition(self._topic, n): newest for n in self._partitions}, isolation_level=level
            )
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        committed, all_ = ({at.partition: found.result().offset for at, found in end.items()} for end in ends)
        return sorted(n for n in all_ if committed[n] < all_[n])


@contextmanager
def member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.subscribe([topic])
        until_s = time.monotonic() + WAIT_S
        while not consumer.assignment():
            if time.monotonic() > until_s:
                raise TimeoutError(f"no partition of {topic} was assigned within {WAIT_S:.0f} s")
            consumer.poll(0.1)
        yield
    finally:
        consumer.close()


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        wanted = [TopicPartition(topic, n) for n in range(partitions)]
        return [max(0, found.offset) for found in consumer.committed(wanted, WAIT_S)]
    except KafkaException:
        return [0] * partitions
    finally:
        consumer.close()


def consume(bootstrap: str, topic: str) -> list[Message]:
    """All records of a topic without writers; those of a partition in order."""
    return TopicReader(bootstrap, topic, fetch_wait_ms=FETCH_WAIT_MS).rest()


def consume_committed(bootstrap: str, topic: str) -> list[Message]:
    """The records that are committed now, by partition, in order."""
    return TopicReader(bootstrap, topic, fetch_wait_ms=FETCH_WAIT_MS).messages()


def _timed(messages: Iterable[Message]) -> list[tuple[float, bytes]]:
    return [(m.timestamp()[1] / 1000, m.value() or b"") for m in messages]
