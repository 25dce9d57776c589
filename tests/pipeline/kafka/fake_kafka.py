"""A scripted Kafka, for a pipeline `p` that reads topic `a`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forebay.connectors.kafka.admin import KafkaAway, Place
from forebay.pipeline.kafka import offsets, start
from forebay.pipeline.load import parse_spec

MOMENT_MS = 1769860800000


class FakeKafka:
    def __init__(self) -> None:
        self.groups: dict[str, tuple[Place, ...]] = {}
        self.failure: Exception | None = None
        self.refuses = False
        self.timeouts_s: list[float] = []
        self.begin = 10
        self.only_markers = False
        self.compared = 0
        self.ids = {"a": "id-a", "b": "id-b", "ab": "id-ab"}

    def topics(self) -> frozenset[str]:
        return frozenset(("a", "b", "ab"))

    def offsets(self, topics: Iterable[str], at: object) -> tuple[Place, ...]:
        base = {"earliest": self.begin, "latest": 90, MOMENT_MS: 50}[at]  # type: ignore[index]
        return tuple(
            Place(topic, partition, base + partition)
            for topic in topics
            for partition in range(2 if topic == "a" else 1)
        )

    def ends(self, topics: Iterable[str]) -> tuple[Place, ...]:
        return self.offsets(topics, "latest")

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics}

    def committed(self, group: str) -> tuple[Place, ...]:
        if self.failure is not None:
            raise self.failure
        return self.groups.get(group, ())

    def commit(self, group: str, places: Iterable[Place]) -> None:
        if self.refuses:
            raise KafkaAway("refused")
        self.groups[group] = tuple(places)


def spec(**source: Any) -> Any:
    return parse_spec(
        {
            "name": "p",
            "source": {"type": "kafka", "bootstrap": "127.0.0.1:9092", "topics": ["a"], **source},
            "prompt": "{{ text }}",
            "sink": {"type": "jsonl", "path": "out"},
        }
    )


def use(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pipelines use `fake` only."""

    @contextmanager
    def client(cluster: object, timeout_s: float = 5.0) -> Iterator[FakeKafka]:
        fake.timeouts_s.append(timeout_s)
        yield fake

    def all_read(cluster: object, committed: Iterable[Place], ends: Iterable[Place], *limits: object) -> bool:
        fake.compared += 1
        return fake.only_markers or set(committed) == set(ends)

    for module in (offsets, start):
        monkeypatch.setattr(module, "kafka_admin", client)
    monkeypatch.setattr(offsets, "all_read", all_read)
