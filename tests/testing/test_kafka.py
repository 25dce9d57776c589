"""A local Kafka that is killed restarts with everything that it had acknowledged."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.topic_client import WAIT_S, consume
from confluent_kafka import KafkaException, Producer

from forebay.processes import wait_gone
from forebay.testing.kafka import FENCING
from forebay.testing.waiting import wait_until

PRODUCERS = 12
OWNER = """
import sys
from pathlib import Path
from forebay.testing.kafka import local_kafka

with local_kafka(Path(sys.argv[1]), Path(sys.argv[2])):
    sys.stdin.read()
"""


class Committing:
    """A producer that commits transactions until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed = 0
        self.failed: KafkaException | None = None
        self.id = uuid.uuid4().hex
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": self.id, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        self._producer.init_transactions(WAIT_S)
        self._thread.start()

    def end(self) -> None:
        """Leave the transaction: its commit may or may not complete."""
        self._ended.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            self._commit_on()
        except KafkaException as error:
            self.failed = error

    def _commit_on(self) -> None:
        while not self._ended.is_set():
            self._producer.begin_transaction()
            for partition in range(4):
                self._producer.produce(self._topic, self.id.encode(), partition=partition)
            self.committed += self._commit()

    def _commit(self) -> bool:
        while not self._ended.is_set():
            try:
                self._producer.commit_transaction(0.5)
                return True
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
        return False


def test_paused_node_is_silent_and_then_continues(node: Any, topic: Callable[..., str]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": uuid.uuid4().hex})
    name = topic(partitions=1)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(name, b"before")
    producer.flush(WAIT_S)
    node.pause()
    try:
        with pytest.raises(KafkaException) as caught:
            producer.commit_transaction(0.5)
        assert caught.value.args[0].retriable()
    finally:
        node.go_on()
    producer.commit_transaction(WAIT_S)
    assert [message.value() for message in consume(node.bootstrap, name)] == [b"before"]


@pytest.mark.long
def test_commits_that_a_kill_interrupts_are_whole_after_it(node: Any, topic: Callable[..., str]) -> None:
    name = topic(partitions=4)
    producers = [Committing(node.bootstrap, name) for _ in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    wait_until(lambda: all(producer.committed >= 5 or producer.failed for producer in producers))
    node.controller_log.unlink(missing_ok=True)
    node.kill()
    for producer in producers:
        producer.end()
    node.start()
    # Without this, the assertions below would sometimes fail.
    assert FENCING in node.controller_log.read_text()
    for producer in producers:
        # A new producer of an id ends what the old one left open.
        new = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": producer.id})
        new.init_transactions(WAIT_S)
    found = [(message.value(), message.partition()) for message in consume(node.bootstrap, name)]
    for producer in producers:
        written = {found.count((producer.id.encode(), partition)) for partition in range(4)}
        assert len(written) == 1, "a transaction is seen in all of its partitions or in none"
        # Acknowledged commits are there; the last may be there without an acknowledgement.
        assert written <= {producer.committed, producer.committed + 1}


def node_of(owner: int) -> list[psutil.Process]:
    """Its broker, once that has begun."""
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(owner).children() if "kafka.Kafka" in each.cmdline()]
    return []


@pytest.mark.skipif(sys.platform != "linux", reason="a signal of Linux's kernel")
def test_a_node_ends_with_the_process_that_started_it(kafka_home: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(kafka_home), str(tmp_path / "kafka")]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE)
    wait_until(lambda: bool(node_of(owner.pid)))
    (node,) = node_of(owner.pid)
    owner.kill()
    owner.communicate()
    assert wait_gone([node], 180.0) == set()
