"""What a job wants of Kafka, held against what is there before the job starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from forebay.clock import Clock, SystemClock
from forebay.connectors.kafka.admin import KafkaAdmin, KafkaAway, kafka_admin
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.errors import PipelineFailed, SettingError

PAUSE_S = 1.0

T = TypeVar("T")
Say = Callable[[str, float], None]
"""Told why Kafka is waited for, and for how long it has been, in seconds."""


def ask_kafka(
    cluster: KafkaCluster,
    ask: Callable[[KafkaAdmin], T],
    *,
    patience_s: float,
    begin_s: float | None = None,
    say: Say = lambda words, waited_s: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `ask` returns, tried until a broker answers; blocks.

    Raises `PipelineFailed` where none has answered `patience_s` after `begin_s` (None: now), and what `ask`
    raises; at once where Kafka does not let the client in (`KafkaRefused`). Needs this process's JVM, with
    the connector on its class path.
    """
    time_ = clock or SystemClock()
    begin_s = time_.monotonic_s() if begin_s is None else begin_s
    while True:
        try:
            with kafka_admin(cluster) as admin:
                return ask(admin)
        except KafkaAway as error:
            waited_s = time_.monotonic_s() - begin_s
            if waited_s >= patience_s:
                raise PipelineFailed(
                    f"{error}; gave up after {waited_s:.0f} s: check 'bootstrap', and that the addresses "
                    f"which its brokers advertise can be reached from here"
                ) from None
            say(str(error), waited_s)
        sleep(PAUSE_S)


def check_topics_read(admin: KafkaAdmin, topics: Iterable[str], where: str) -> None:
    """Raise `SettingError`, naming `where`, for topics that do not exist."""
    wanted = set(topics)
    missing = sorted(wanted - admin.topics()) if wanted else []
    if missing:
        raise SettingError(
            f"{where}: Kafka has no topic {', '.join(map(repr, missing))} that this client may see; "
            f"create it first, or let the client read it"
        )


def check_topic_written(admin: KafkaAdmin, topic: str, where: str) -> None:
    """Raise `SettingError`, naming `where`, if there is no such topic."""
    if topic not in admin.topics():
        raise SettingError(
            f"{where}: Kafka has no topic {topic!r} that this client may see; "
            f"create it first, or let the client write to it"
        )


def check_transaction_timeout(admin: KafkaAdmin, timeout_s: float, where: str) -> None:
    """Raise `SettingError`, naming `where`, if no transaction may stay open for so long."""
    longest_s = admin.longest_transaction_ms() / 1000
    if timeout_s > longest_s:
        raise SettingError(
            f"{where}: expected at most {longest_s:g}, the brokers' transaction.max.timeout.ms, "
            f"found {timeout_s:g}"
        )
