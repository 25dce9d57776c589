"""Sends events when they are due, and reads results as external consumers see them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import orjson
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.peers.base import event_of, read_result
from benchmarks.topic_client import make_topic

POLL_S = 0.05
FLUSH_S = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of the results, and when it was seen, on the monotonic clock."""

    index: int
    at_s: float
    answered: bool


class Topics:
    def __init__(self, bootstrap: str) -> None:
        stem = f"peers-{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.events, self.results, self.letters = (
            f"{stem}-{what}" for what in ("events", "results", "letters")
        )
        for name in (self.events, self.results, self.letters):
            make_topic(bootstrap, name)


class Feed:
    def __init__(self, topics: Topics) -> None:
        self._topic = topics.events
        self._producer = Producer({"bootstrap.servers": topics.bootstrap, "linger.ms": 0, "log_level": 0})

    def send(self, id: str) -> None:
        self._producer.produce(self._topic, orjson.dumps(event_of(id)))
        self._producer.poll(0)

    def send_paced(self, count: int, rate_per_s: float, start_s: float) -> float:
        late_s = 0.0
        for index in range(count):
            due_s = start_s + index / rate_per_s
            if (wait_s := due_s - time.monotonic()) > 0:
                time.sleep(wait_s)
            late_s = max(late_s, time.monotonic() - due_s)
            self.send(f"event-{index}")
        self._producer.flush(FLUSH_S)
        return late_s


class Watch:
    """Reads topics from their beginning in a thread, during the block."""

    def __init__(self, topics: Topics, *, committed: bool) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": topics.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(name, 0, 0) for name in (topics.results, topics.letters)])
        self._letters = topics.letters
        self._thread = threading.Thread(target=self._read, name="watch-results", daemon=True)
        self._left = threading.Event()
        self._seen: list[Seen] = []
        self._indices: set[int] = set()
        self._warm = 0

    @property
    def warm(self) -> int:
        return self._warm

    @property
    def events(self) -> int:
        return len(self._indices)

    @property
    def seen(self) -> tuple[Seen, ...]:
        return tuple(self._seen)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._left.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self._take(message)

    def _take(self, message: Message) -> None:
        now_s = time.monotonic()
        named = read_result(message.value() or b"")
        if named is None:
            return
        if named.kind == "warm":
            self._warm += 1
            return
        answered = named.answered and message.topic() != self._letters
        self._seen.append(Seen(named.index, now_s, answered))
        self._indices.add(named.index)


def doubled(seen: Iterable[Seen]) -> int:
    indices = [one.index for one in seen]
    return len(indices) - len(set(indices))
