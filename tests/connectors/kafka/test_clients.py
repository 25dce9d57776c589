"""Kafka's Java clients, with a real node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from benchmarks.topic_client import produce
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from forebay.connectors.kafka.admin import KafkaAway
from forebay.connectors.kafka.clients import FollowedTopic
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.testing.waiting import wait_until

pytestmark = [pytest.mark.flink, pytest.mark.usefixtures("flink_logs", "kafka_jar")]


def test_a_topic_is_followed_from_its_newest_records(node: Any, topic: Callable[..., str]) -> None:
    name = topic(2)

    def write(*values: str, partition: int = 0, **more: Any) -> None:
        produce(node.bootstrap, name, [{"value": each, "partition": partition} for each in values], **more)

    write(*(f"a{n}" for n in range(9)))
    write(*(f"b{n}" for n in range(3)), partition=1)
    with closing(FollowedTopic(KafkaCluster(node.bootstrap), name, newest=4)) as followed:
        assert list(followed.new()) == [b"a7", b"a8", b"b1", b"b2"]
        write("aborted", transaction=name, commit=False)
        write("one", "two", "three")
        # The caller of the first stops between two.
        assert (next(followed.new()), *followed.new()) == (b"one", b"two", b"three")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_partitions([NewPartitions(name, 3)])[name].result(60)
        write("new", "partition", partition=2)
        found: list[bytes] = []
        wait_until(lambda: bool(found.extend(followed.new()) or found))
        assert found == [b"new", b"partition"]


def test_a_node_that_is_away_is_named() -> None:
    with (
        closing(FollowedTopic(KafkaCluster("127.0.0.1:1"), "t")) as followed,
        pytest.raises(KafkaAway, match=r"Kafka at 127\.0\.0\.1:1 does not answer"),
    ):
        next(followed.new())
