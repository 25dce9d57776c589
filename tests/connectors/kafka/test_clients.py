"""Kafka's Java clients, with a real node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from benchmarks.topic_client import delete_topic, make_topic, produce
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from tests.harness.clock import ManualClock

from forebay.connectors.kafka import clients
from forebay.connectors.kafka.admin import KafkaAway, KafkaRefused
from forebay.connectors.kafka.clients import FollowedTopic
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.errors import SettingError
from forebay.settings import SecretRef
from forebay.testing.waiting import wait_until

pytestmark = [pytest.mark.flink, pytest.mark.usefixtures("flink_logs", "kafka_jar")]


def test_a_topic_is_followed_from_its_newest_records(
    node: Any, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "LEAST_RECORDS", 2)
    name = topic(2)

    def write(*values: str, partition: int = 0, **more: Any) -> None:
        produce(node.bootstrap, name, [{"value": each, "partition": partition} for each in values], **more)

    write(*(f"a{n}" for n in range(9)))
    write(*(f"b{n}" for n in range(3)), partition=1)
    with closing(FollowedTopic(KafkaCluster(node.bootstrap), name, newest=1)) as followed:
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
        assert followed.partial
        write("left out")
        followed.skip()
        write("last")
        assert list(followed.new()) == [b"last"]
        delete_topic(node.bootstrap, name)
        make_topic(node.bootstrap, name, 2)
        write("again")
        found.clear()
        wait_until(lambda: _read_again(followed, found))
        assert found == [b"again"]


def _read_again(followed: FollowedTopic, found: list[bytes]) -> bool:
    # Kafka may report neither the old nor the new topic yet.
    with suppress(KafkaAway, SettingError):
        found += followed.new()
    return bool(found)


def test_a_topic_that_is_missing_is_named(node: Any) -> None:
    with (
        closing(FollowedTopic(KafkaCluster(node.bootstrap), "nope")) as followed,
        pytest.raises(SettingError, match="has no topic 'nope' that this client may see"),
    ):
        next(followed.new())


def test_failed_client_creation_quotes_no_secret() -> None:
    secrets = {"ssl.key.password": SecretRef(env="NONE")}
    cluster = KafkaCluster("127.0.0.1:1", {"security.protocol": "NONSENSE"}, secrets)
    with closing(FollowedTopic(cluster, "t")) as followed, pytest.raises(KafkaRefused) as error:
        next(followed.new())
    assert str(error.value).startswith("could not create a client for Kafka at 127.0.0.1:1")
    assert "NONSENSE" not in str(error.value)


class Record:
    def timestamp(self) -> int:
        return 0

    def value(self) -> bytes:
        return b"x"


class Consumer:
    """One that returns a record of each partition in a poll of ten seconds. `aborted`: none of them."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.partitions, self.end, self.aborted = clock, 1, 4, False
        self.places: dict[Any, int] = {}
        self.moves = True

    def partitionsFor(self, topic: str) -> range:
        return range(self.partitions)

    def beginningOffsets(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def endOffsets(self, partitions: Any) -> dict[Any, int]:
        return dict.fromkeys(partitions, self.end)

    def assign(self, partitions: Any) -> None:
        self.places = {each: self.places.get(each, 0) for each in partitions}

    def seek(self, partition: Any, place: int) -> None:
        self.places[partition] = place

    def position(self, partition: Any) -> int:
        return self.places[partition]

    def poll(self, _wait: Any) -> Any:
        self.clock.advance(10.0)
        moved = [each for each, place in self.places.items() if self.moves and place < self.end]
        for each in moved:
            self.places[each] += 1
        return SimpleNamespace(iterator=lambda: iter([] if self.aborted else [Record() for _ in moved]))

    def close(self, _wait: Any) -> None: ...


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> Consumer:
    found = Consumer(ManualClock())
    monkeypatch.setattr(FollowedTopic, "_open", lambda _: found)
    return found


def followed_by(consumer: Consumer) -> FollowedTopic:
    return FollowedTopic(KafkaCluster("h:1"), "t", monotonic_s=consumer.clock.monotonic_s)


@pytest.mark.parametrize("limit", ["MOST_RECORDS", "MOST_BYTES"])
def test_only_the_first_call_has_no_limit(
    consumer: Consumer, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, limit, 3)
    followed = followed_by(consumer)
    assert len(list(followed.new())) == 4
    consumer.end = 9
    assert [len(list(followed.new())) for _ in range(3)] == [3, 2, 0]


def test_a_topic_is_silent_only_while_no_position_moves(consumer: Consumer) -> None:
    consumer.end, consumer.aborted = 9, True
    followed = followed_by(consumer)
    assert not list(followed.new())
    consumer.end, consumer.moves = 10, False
    with pytest.raises(KafkaAway, match=r"at h:1 returned no record of 't' for 30 s"):
        list(followed.new())


def test_a_new_partition_is_read_after_a_failure(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = followed_by(consumer)
    assert len(list(followed.new())) == 4
    consumer.partitions = 3
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "beginningOffsets", Mock(side_effect=KafkaAway("away")))
        with pytest.raises(KafkaAway):
            list(followed.new())
    assert len(list(followed.new())) == 8
    # The topic was created again, with fewer records and partitions.
    consumer.partitions, consumer.end = 2, 1
    assert len(list(followed.new())) == 2


def test_unreachable_node_is_named() -> None:
    with (
        closing(FollowedTopic(KafkaCluster("127.0.0.1:1"), "t")) as followed,
        pytest.raises(KafkaAway, match=r"Kafka at 127\.0\.0\.1:1 does not answer"),
    ):
        next(followed.new())
