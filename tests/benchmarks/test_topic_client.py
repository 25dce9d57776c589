"""The records that a topic reader reports are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.topic_client import TopicReader, produce
from confluent_kafka import Producer

from benchmarks import topic_client


def test_a_reader_comes_to_the_end_bit_by_bit(node: Any, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    reader = TopicReader(node.bootstrap, name)
    assert reader.to_the_end() == []
    produce(node.bootstrap, name, [{"value": b"%d" % n, "partition": n % 2} for n in range(5)])
    assert [value for _, value in reader.to_the_end()] == [b"0", b"2", b"4", b"1", b"3"]
    assert reader.to_the_end() == []


def test_what_an_open_transaction_hides_is_not_the_end(
    node: Any, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, value=b"open", partition=1)
    producer.flush()
    produce(node.bootstrap, name, [{"value": b"behind", "partition": 1}])
    reader = TopicReader(node.bootstrap, name)
    monkeypatch.setattr(topic_client, "WAIT_S", 0.5)
    with pytest.raises(TimeoutError, match=r"partitions \[1\] end in an open transaction"):
        reader.to_the_end()
    producer.commit_transaction()
    monkeypatch.undo()
    assert [value for _, value in reader.to_the_end()] == [b"open", b"behind"]
