"""What Kafka says of itself, asked before a job starts and while it runs.

Asks with the Java client that is in the connector's jar, so that it sees Kafka as the job will: the same
properties, the same secrets. The jar must be on the class path of this process's JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.connectors.kafka.cluster import SHADED, KafkaCluster
from forebay.errors import LaunchError, SettingError

CALL_TIMEOUT_S = 5.0
REFUSALS = frozenset(("AuthenticationException", "AuthorizationException"))


class KafkaAway(LaunchError):
    """No broker answered in time."""


class KafkaRefused(SettingError):
    """Kafka does not let this client in, or the client does not take its properties; no wait will mend it."""


class _GroupUnknown(Exception):
    """Kafka knows no group of the name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A partition and an offset in it."""

    topic: str
    partition: int
    offset: int


class KafkaAdmin:
    """An open client. Each call blocks for at most `timeout_s` and raises `KafkaAway` where Kafka does not
    answer, `KafkaRefused` where it lets nobody in, naming the servers and what it said."""

    def __init__(self, cluster: KafkaCluster, client: Any) -> None:
        self._cluster = cluster
        self._client = client

    def topics(self) -> frozenset[str]:
        """The names of all topics that are not Kafka's own."""
        return frozenset(str(name) for name in self._ask(self._client.listTopics().names()))

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each of `topics` has; without those that do not exist."""
        there = sorted(set(topics) & self.topics())
        found = self._ask(self._client.describeTopics(_java_list(there)).allTopicNames())
        return {str(name): found.get(name).partitions().size() for name in found}

    def longest_transaction_ms(self) -> int:
        """The longest transaction that the brokers allow (`transaction.max.timeout.ms`)."""
        node = self._ask(self._client.describeCluster().nodes()).iterator().next()
        jvm = get_gateway().jvm
        kind = jvm.java.lang.Class.forName(f"{SHADED}.common.config.ConfigResource$Type")
        broker = next(value for value in kind.getEnumConstants() if value.name() == "BROKER")
        resource = _shaded().common.config.ConfigResource(broker, node.idString())
        found = self._ask(self._client.describeConfigs(_java_list([resource])).all())
        return int(found.get(resource).get("transaction.max.timeout.ms").value())

    def members(self, group: str) -> int:
        """How many consumers are in `group` now; none where there is no such group."""
        try:
            found = self._ask(self._client.describeConsumerGroups(_java_list([group])).all())
        except _GroupUnknown:
            return 0
        return int(found.get(group).members().size())

    def committed(self, group: str) -> tuple[Place, ...]:
        """The offsets that `group` has committed, by topic and partition."""
        found = self._ask(self._client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        places = (
            Place(str(p.topic()), int(p.partition()), int(found.get(p).offset()))
            for p in found
            if found.get(p) is not None
        )
        return tuple(sorted(places, key=lambda place: (place.topic, place.partition)))

    def ends(self, topics: Iterable[str]) -> tuple[Place, ...]:
        """The offset behind the newest record of each partition of `topics`."""
        counts = self.partitions(topics)
        jvm = get_gateway().jvm
        wanted = jvm.java.util.HashMap()
        latest = _shaded().clients.admin.OffsetSpec.latest()
        for topic, partitions in counts.items():
            for partition in range(partitions):
                wanted.put(_shaded().common.TopicPartition(topic, partition), latest)
        found = self._ask(self._client.listOffsets(wanted).all())
        places = (Place(str(p.topic()), int(p.partition()), int(found.get(p).offset())) for p in found)
        return tuple(sorted(places, key=lambda place: (place.topic, place.partition)))

    def _ask(self, future: Any) -> Any:
        try:
            return future.get()
        except Py4JJavaError as error:
            cause = error.java_exception.getCause() or error.java_exception
            if cause.getClass().getSimpleName() == "GroupIdNotFoundException":
                raise _GroupUnknown from None
            said = str(cause.getMessage() or cause.getClass().getSimpleName())
            if REFUSALS & set(_classes(cause)):
                raise KafkaRefused(
                    f"Kafka at {self._cluster.bootstrap} refuses: {said}; check 'properties' and 'secrets'"
                ) from None
            raise KafkaAway(f"Kafka at {self._cluster.bootstrap} does not answer: {said}") from None


@contextmanager
def kafka_admin(cluster: KafkaCluster, timeout_s: float = CALL_TIMEOUT_S) -> Iterator[KafkaAdmin]:
    """A client of `cluster`; nothing is asked of it yet. Raises `KafkaRefused` where it cannot be."""
    properties = get_gateway().jvm.java.util.Properties()
    limit_ms = str(round(timeout_s * 1000))
    limits = {"request.timeout.ms": limit_ms, "default.api.timeout.ms": limit_ms}
    for name, value in {**cluster.client_properties(), **limits}.items():
        properties.put(name, value)
    try:
        client = _shaded().clients.admin.AdminClient.create(properties)
    except Py4JJavaError as error:
        raise KafkaRefused(
            f"a client of Kafka at {cluster.bootstrap} cannot be made: {_why(cluster, error)}"
        ) from None
    try:
        yield KafkaAdmin(cluster, client)
    finally:
        with suppress(Py4JJavaError):
            client.close(get_gateway().jvm.java.time.Duration.ofSeconds(1))


def lag(ends: Iterable[Place], committed: Iterable[Place]) -> int:
    """The records behind the committed offsets; a partition without one counts from offset 0."""
    done = {(place.topic, place.partition): place.offset for place in committed}
    return sum(max(0, end.offset - done.get((end.topic, end.partition), 0)) for end in ends)


def _why(cluster: KafkaCluster, error: Py4JJavaError) -> str:
    """What a client says against its properties; where there are secrets, they may hold parts of them."""
    cause = error.java_exception.getCause() or error.java_exception
    if not cluster.secrets:
        return str(cause.getMessage())
    while cause.getCause() is not None:
        cause = cause.getCause()
    hint = f" (login modules are in {SHADED})" if "sasl.jaas.config" in cluster.secrets else ""
    names = ", ".join(sorted(cluster.secrets))
    return f"{cause.getClass().getSimpleName()}; check 'properties' and the secrets {names}{hint}"


def _classes(error: Any) -> Iterator[str]:
    """The names of a Java error's class and of those above it."""
    found = error.getClass()
    while found is not None:
        yield str(found.getSimpleName())
        found = found.getSuperclass()


def _shaded() -> Any:
    found: Any = get_gateway().jvm
    for name in SHADED.split("."):
        found = getattr(found, name)
    return found


def _java_list(values: Iterable[Any]) -> Any:
    made = get_gateway().jvm.java.util.ArrayList()
    for value in values:
        made.append(value)
    return made
