"""Query Kafka while a job runs, and check its topics and limits before the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyflink.java_gateway import get_gateway

from forebay.clock import Clock, SystemClock
from forebay.connectors.kafka.cluster import SHADED, KafkaCluster
from forebay.errors import LaunchError, PipelineFailed, SettingError

CALL_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
"""For single calls; a failure would abort the start of a job."""
NO_ADDRESS = "No resolvable bootstrap urls"
UNKNOWN = frozenset(("GroupIdNotFoundException", "TransactionalIdNotFoundException"))
REFUSALS = frozenset(("AuthenticationException", "AuthorizationException"))


class KafkaAway(LaunchError): ...


class KafkaRefused(SettingError): ...


class _Unknown(Exception): ...


@dataclass(frozen=True, slots=True)
class Place:
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """`state`: Kafka's word. `began_ms`: broker's clock. `producer_id`, `epoch`: of the producer that may
    end it."""

    state: str
    began_ms: int | None = None
    producer_id: int = -1
    epoch: int = -1


class KafkaAdmin:
    """Calls block, and raise `KafkaAway` if Kafka does not answer, `KafkaRefused` if it rejects the
    client."""

    def __init__(self, cluster: KafkaCluster, client: Any) -> None:
        self._cluster = cluster
        self._client = client

    def topics(self) -> frozenset[str]:
        """Without Kafka's internal ones."""
        return frozenset(str(name) for name in self._ask(self._client.listTopics().names()))

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Without topics that do not exist."""
        return {name: each.partitions().size() for name, each in self._described(topics).items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """An id changes when a topic is created again."""
        return {name: str(each.topicId().toString()) for name, each in self._described(topics).items()}

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        there = sorted(set(topics) & self.topics())
        found = self._ask(self._client.describeTopics(java_list(there)).allTopicNames())
        return {str(name): found.get(name) for name in found}

    def cluster_id(self) -> str:
        return str(self._ask(self._client.describeCluster().clusterId()))

    def longest_transaction_ms(self) -> int:
        node = self._ask(self._client.describeCluster().nodes()).iterator().next()
        return int(self._config("BROKER", node.idString(), "transaction.max.timeout.ms"))

    def longest_record_bytes(self, topic: str) -> int | None:
        """The topic's `max.message.bytes`; None if this client may not read it."""
        try:
            return int(self._config("TOPIC", topic, "max.message.bytes"))
        except KafkaRefused:
            return None

    def _config(self, kind: str, name: str, key: str) -> str:
        # If the connector was loaded after the JVM had started, only this loader has it.
        loader = get_gateway().jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kinds = loader.loadClass(f"{SHADED}.common.config.ConfigResource$Type").getEnumConstants()
        wanted = next(each for each in kinds if each.name() == kind)
        resource = shaded("common.config.ConfigResource")(wanted, name)
        found = self._ask(self._client.describeConfigs(java_list([resource])).all())
        return str(found.get(resource).get(key).value())

    def members(self, group: str) -> int:
        """0 if there is no such group."""
        try:
            found = self._ask(self._client.describeConsumerGroups(java_list([group])).all())
        except _Unknown:
            return 0
        return int(found.get(group).members().size())

    def transactions(self, ids: Iterable[str]) -> dict[str, Transaction]:
        """Without unknown ids."""
        wanted, found = list(ids), {}
        descriptions = self._client.describeTransactions(java_list(wanted))
        for id in wanted:
            with suppress(_Unknown):
                description = self._ask(descriptions.description(id))
                began = description.transactionStartTimeMs()
                began_ms = int(began.getAsLong()) if began.isPresent() else None
                found[id] = Transaction(
                    str(description.state().toString()),
                    began_ms,
                    int(description.producerId()),
                    int(description.producerEpoch()),
                )
        return found

    def abort(self, ids: Iterable[str]) -> None:
        """Also fences the producers."""
        self._ask(self._client.fenceProducers(java_list(ids)).all())

    def committed(self, group: str) -> tuple[Place, ...]:
        found = self._ask(self._client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        places = (
            Place(str(p.topic()), int(p.partition()), int(found.get(p).offset()))
            for p in found
            if found.get(p) is not None
        )
        return tuple(sorted(places, key=lambda place: (place.topic, place.partition)))

    def commit(self, group: str, places: Iterable[Place]) -> None:
        """The group must have no members."""
        partition, offset = shaded("common.TopicPartition"), shaded("clients.consumer.OffsetAndMetadata")
        offsets = get_gateway().jvm.java.util.HashMap()
        for place in places:
            offsets.put(partition(place.topic, place.partition), offset(place.offset))
        self._ask(self._client.alterConsumerGroupOffsets(group, offsets).all())

    def ends(self, topics: Iterable[str]) -> tuple[Place, ...]:
        return self.offsets(topics, "latest")

    def offsets(self, topics: Iterable[str], at: Literal["earliest", "latest"] | int) -> tuple[Place, ...]:
        """Each partition's first offset, its end, or the first record at or after a time in ms."""
        specs = shaded("clients.admin.OffsetSpec")
        if isinstance(at, int):
            wanted = specs.forTimestamp(at)
        else:
            wanted = specs.earliest() if at == "earliest" else specs.latest()
        found = self._offsets(topics, wanted)
        if isinstance(at, int) and any(place.offset < 0 for place in found):
            ends = {(end.topic, end.partition): end for end in self.offsets(topics, "latest")}
            found = [place if place.offset >= 0 else ends[place.topic, place.partition] for place in found]
        return tuple(sorted(found, key=lambda place: (place.topic, place.partition)))

    def _offsets(self, topics: Iterable[str], spec: Any) -> list[Place]:
        wanted = get_gateway().jvm.java.util.HashMap()
        for topic, partitions in self.partitions(topics).items():
            for partition in range(partitions):
                wanted.put(shaded("common.TopicPartition")(topic, partition), spec)
        found = self._ask(self._client.listOffsets(wanted).all())
        return [Place(str(p.topic()), int(p.partition()), int(found.get(p).offset())) for p in found]

    def create(self, topics: Iterable[str], config: Mapping[str, str]) -> None:
        optional, settings = get_gateway().jvm.java.util.Optional, get_gateway().jvm.java.util.HashMap()
        for key, value in config.items():
            settings.put(key, value)
        made = (shaded("clients.admin.NewTopic")(name, optional.of(1), optional.empty()) for name in topics)
        self._ask(self._client.createTopics(java_list(topic.configs(settings) for topic in made)).all())

    def _ask(self, future: Any) -> Any:
        try:
            return future.get()
        except Py4JJavaError as error:
            if _cause(error).getClass().getSimpleName() in UNKNOWN:
                raise _Unknown from None
            raise call_failed(self._cluster, error) from None


@contextmanager
def kafka_admin(cluster: KafkaCluster, timeout_s: float = CALL_TIMEOUT_S) -> Iterator[KafkaAdmin]:
    """Makes no request yet. Raises `KafkaAway` if no host name resolves, `KafkaRefused` if the client cannot
    be made."""
    properties = client_properties(cluster, timeout_s)
    try:
        client = shaded("clients.admin.AdminClient").create(properties)
    except Py4JJavaError as error:
        raise not_created(cluster, error) from None
    try:
        yield KafkaAdmin(cluster, client)
    finally:
        with suppress(Py4JError, OSError):
            client.close(get_gateway().jvm.java.time.Duration.ofSeconds(1))


def lag(ends: Iterable[Place], committed: Iterable[Place]) -> int:
    """A partition without a committed offset counts from 0."""
    done = {(place.topic, place.partition): place.offset for place in committed}
    return sum(max(0, end.offset - done.get((end.topic, end.partition), 0)) for end in ends)


def not_created(cluster: KafkaCluster, error: Py4JJavaError) -> KafkaAway | KafkaRefused:
    if any(NO_ADDRESS in str(cause.getMessage()) for cause in _causes(error)):
        return KafkaAway(f"Kafka at {cluster.bootstrap}: no such host name; check 'bootstrap'")
    why = _why(cluster, error)
    return KafkaRefused(f"could not create a client for Kafka at {cluster.bootstrap}: {why}")


def call_failed(cluster: KafkaCluster, error: Py4JJavaError) -> KafkaAway | KafkaRefused:
    cause = _cause(error)
    detail = str(cause.getMessage() or cause.getClass().getSimpleName())
    if REFUSALS & set(class_names(cause)):
        return KafkaRefused(
            f"Kafka at {cluster.bootstrap} rejects this client: {detail}; check 'properties' and 'secrets'"
        )
    return KafkaAway(f"Kafka at {cluster.bootstrap} does not answer: {detail}")


def _why(cluster: KafkaCluster, error: Py4JJavaError) -> str:
    """Kafka's text may contain secrets."""
    _, *causes = _causes(error)
    first, cause = (causes or [error.java_exception])[0], (causes or [error.java_exception])[-1]
    if not cluster.secrets:
        return ": ".join(dict.fromkeys((str(first.getMessage()), str(cause.getMessage()))))
    hint = f" (login modules are in {SHADED})" if "sasl.jaas.config" in cluster.secrets else ""
    names = ", ".join(sorted(cluster.secrets))
    return f"{cause.getClass().getSimpleName()}; check 'properties' and the secrets {names}{hint}"


def _cause(error: Py4JJavaError) -> Any:
    return error.java_exception.getCause() or error.java_exception


def _causes(error: Py4JJavaError) -> Iterator[Any]:
    cause = error.java_exception
    while cause is not None:
        yield cause
        cause = cause.getCause()


def class_names(error: Any) -> Iterator[str]:
    found = error.getClass()
    while found is not None:
        yield str(found.getSimpleName())
        found = found.getSuperclass()


def client_properties(
    cluster: KafkaCluster, timeout_s: float | None = None, more: Mapping[str, str] | None = None
) -> Any:
    found = {**cluster.client_properties(), **(more or {})}
    if timeout_s is not None:
        found["request.timeout.ms"] = found["default.api.timeout.ms"] = str(round(timeout_s * 1000))
    properties = get_gateway().jvm.java.util.Properties()
    for name, value in found.items():
        properties.put(name, value)
    return properties


def shaded(path: str) -> Any:
    found: Any = get_gateway().jvm
    for name in (*SHADED.split("."), *path.split(".")):
        found = getattr(found, name)
    return found


def java_list(values: Iterable[Any]) -> Any:
    made = get_gateway().jvm.java.util.ArrayList()
    for value in values:
        made.append(value)
    return made


PAUSE_S = 1.0

T = TypeVar("T")
Note = Callable[[str, float], None]


def ask_kafka(
    cluster: KafkaCluster,
    ask: Callable[[KafkaAdmin], T],
    *,
    patience_s: float,
    begin_s: float | None = None,
    note: Note = lambda words, waited_s: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Retry `ask` until a broker answers; blocks.

    Raises `PipelineFailed` `patience_s` after `begin_s`, `KafkaRefused` at once, and the errors of `ask`.
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
            note(str(error), waited_s)
        sleep(PAUSE_S)


def check_topics_read(admin: KafkaAdmin, topics: Iterable[str], where: str) -> None:
    """Raise `SettingError`, naming the key `where`."""
    wanted = set(topics)
    missing = sorted(wanted - admin.topics()) if wanted else []
    if missing:
        raise SettingError(
            f"{where}: Kafka has no topic {', '.join(map(repr, missing))} that this client may see; "
            f"create it first, or let the client read it"
        )


def check_topic_written(admin: KafkaAdmin, topic: str, where: str) -> None:
    """Raise `SettingError`, naming the key `where`."""
    if topic not in admin.topics():
        raise SettingError(
            f"{where}: Kafka has no topic {topic!r} that this client may see; "
            f"create it first, or let the client write to it"
        )


def check_transaction_timeout(admin: KafkaAdmin, timeout_s: float, where: str) -> None:
    """Raise `SettingError`, naming the key `where`, if the brokers allow only shorter transactions."""
    longest_s = admin.longest_transaction_ms() / 1000
    if timeout_s > longest_s:
        raise SettingError(
            f"{where}: expected at most {longest_s:g}, the brokers' transaction.max.timeout.ms, "
            f"found {timeout_s:g}"
        )
