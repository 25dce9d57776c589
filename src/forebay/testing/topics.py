"""Writes and reads topics with another client than the one under test."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]]) -> None:
    """Write records: `value`, and if given `key`, `headers`, `partition`, `timestamp`."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 20_000_000})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str) -> list[Message]:
    """All committed records of a topic, by partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    open_, found = set(partitions), []
    until_s = time.monotonic() + 60
    while open_:
        assert time.monotonic() < until_s, f"{topic}: no end of partitions {open_}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            open_.discard(message.partition())
        else:
            found.append(message)
    consumer.close()
    return sorted(found, key=lambda m: (m.partition(), m.offset()))
