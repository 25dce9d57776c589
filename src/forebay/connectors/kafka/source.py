"""Records of Kafka topics as events."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyflink.datastream import DataStream, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.table import DataTypes, StreamTableEnvironment, TableDescriptor

from forebay.codec import encode
from forebay.connectors.formats import Format, with_added
from forebay.connectors.kafka.cluster import Generations, KafkaCluster, marked, raw_columns, raw_table
from forebay.connectors.kafka.registry import SchemaRegistry
from forebay.connectors.kafka.registry_values import RegistryValues
from forebay.connectors.letters import read_letter
from forebay.errors import SettingError, Tombstone
from forebay.flink.types import BYTES
from forebay.records import JSON, DeadLetter, Event

FIELD = "kafka"
BASE64 = "base64:"

Parse = Callable[[bytes, Mapping[str, bytes]], Mapping[str, JSON]]
Start = Literal["committed", "earliest", "latest"]
Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics by name, or all whose whole name matches `pattern`.

    `start`, without a checkpoint: the committed offsets of `group`, either end, or a time in ms.
    `until_latest`: the job ends by itself only without discovery and without a restore (Flink's enumerator
    signals the end only when it finds partitions).

    `letters`: values are dead letters. `reset`, if the topic no longer has an offset: `none` fails the job,
    and needs a committed offset for each partition; `earliest` continues silently.
    """

    cluster: KafkaCluster
    format: Format = field(default_factory=Format)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    group: str | None = None
    start: Start | int = "committed"
    discovery_s: float = 10.0
    isolation: Isolation = "read_committed"
    until_latest: bool = False
    registry: SchemaRegistry | None = None
    parallelism: int | None = None
    letters: bool = False
    reset: Literal["none", "earliest"] = "earliest"
    uid: str | None = None
    generations: Generations = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise SettingError("a Kafka source needs either topics or a pattern of their names, and not both")
        if self.start == "committed" and self.group is None:
            raise SettingError("a Kafka source that starts at committed offsets needs a group")


def kafka_source(env: StreamExecutionEnvironment, config: TopicSource, name: str = "kafka") -> DataStream:
    """Encoded records, in order within a partition.

    A position is `topic/partition@offset`, or `topic~2/…` in the second topic of that name. Tombstones and
    unreadable values become dead letters.
    """
    usual = env.get_parallelism()
    env.set_parallelism(config.parallelism or usual)
    try:
        tables = StreamTableEnvironment.create(env)
        rows = tables.to_data_stream(tables.from_descriptor(_source_table(config)))
    finally:
        env.set_parallelism(usual)
    if config.uid is not None:
        _first_transformation(rows).setUid(config.uid)
    read = ReadRecord(config)
    records = rows.map(read, BYTES).name(f"{name}: records")
    return records.set_parallelism(rows._j_data_stream.getParallelism())


def source_options(config: TopicSource) -> dict[str, str]:
    options = {
        **config.cluster.options(),
        "scan.topic-partition-discovery.interval": f"{round(config.discovery_s * 1000)} ms",
        "properties.isolation.level": config.isolation,
    }
    if config.topics:
        options["topic"] = ";".join(config.topics)
    else:
        options["topic-pattern"] = config.pattern or ""
    if config.group is not None:
        options["properties.group.id"] = config.group
    if isinstance(config.start, int):
        options |= {"scan.startup.mode": "timestamp", "scan.startup.timestamp-millis": str(config.start)}
    elif config.start == "committed":
        options |= {"scan.startup.mode": "group-offsets"}
        options.setdefault("properties.auto.offset.reset", config.reset)
    else:
        options["scan.startup.mode"] = f"{config.start}-offset"
    if config.until_latest:
        options["scan.bounded.mode"] = "latest-offset"
    return options


def _source_table(config: TopicSource) -> TableDescriptor:
    schema = (
        raw_columns()
        .column_by_metadata("time", DataTypes.TIMESTAMP_LTZ(3), "timestamp")
        .column_by_metadata("topic", DataTypes.STRING(), "topic", is_virtual=True)
        .column_by_metadata("part", DataTypes.INT(), "partition", is_virtual=True)
        .column_by_metadata("at", DataTypes.BIGINT(), "offset", is_virtual=True)
        .build()
    )
    return raw_table(schema, source_options(config))


def _first_transformation(rows: DataStream) -> Any:
    found = rows._j_data_stream.getTransformation()
    while not found.getInputs().isEmpty():
        found = found.getInputs().get(0)
    return found


class ReadRecord(MapFunction):
    def __init__(self, config: TopicSource) -> None:
        self._format = config.format
        self._registry = config.registry
        self._letters = config.letters
        self._generations = config.generations
        self._parse: Parse | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        if self._registry is not None:
            self._parse = RegistryValues(self._registry).fields

    def map(self, row: Any) -> bytes:
        key, value, headers, time, topic, partition, offset = row
        place = {"topic": topic, "partition": partition, "offset": offset, "time_ms": _millis(time)}
        position = f"{marked(topic, self._generations)}/{partition}@{offset}"
        headers = headers or {}
        if self._letters and value is not None:
            line = bytes(value)
            record = read_letter(self._format, line, position, parse=self._parse)
            if isinstance(record, DeadLetter) and record.raw == line:
                # The line itself cannot be read: use the key and headers of its own record.
                own = {"record_key": key, "headers": dict(headers), "record_ms": place["time_ms"]}
                record = replace(record, time_ms=place["time_ms"], **own)
            return encode(record)
        return encode(
            read_record(self._format, key, value, headers, place, position=position, parse=self._parse)
        )


def read_record(
    form: Format,
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes | None],
    place: Mapping[str, Any],
    *,
    position: str | None = None,
    parse: Parse | None = None,
) -> Event | DeadLetter:
    """`place` has topic, partition, offset and time_ms. `parse` returns the fields for value and headers."""
    position = position or f"{place['topic']}/{place['partition']}@{place['offset']}"
    kept = dict(headers)
    record: Event | DeadLetter
    if value is None:
        record = DeadLetter(
            raw=b"", cause=Tombstone.cause, detail="a tombstone: it has no value", position=position
        )
    elif parse is None:
        record = form.read(value, position)
    else:
        given = {name: content for name, content in kept.items() if content is not None}
        record = form.read(value, position, lambda data: parse(data, given))
    time_ms = place["time_ms"] if record.time_ms is None else record.time_ms
    if isinstance(record, DeadLetter):
        return replace(record, time_ms=time_ms, record_key=key, headers=kept, record_ms=place["time_ms"])
    texts = {name: text_of(content) for name, content in kept.items()}
    about = {**place, "key": text_of(key), "headers": texts}
    fields = with_added(record.fields, {FIELD: about})
    of_kafka = {"record_key": key, "headers": kept, "record_ms": place["time_ms"]}
    return replace(record, fields=fields, time_ms=time_ms, **of_kafka)


def text_of(data: bytes | None) -> str | None:
    """Different bytes give different text: base64 if they are not UTF-8 or contain a NUL."""
    if data is None:
        return None
    if b"\0" not in data and not data.startswith(BASE64.encode()):
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            pass
    return BASE64 + base64.b64encode(data).decode("ascii")


def _millis(time: Any) -> int:
    # Inside the JVM the value is a Java Instant, in a worker process PyFlink's.
    millis: int = time.toEpochMilli() if hasattr(time, "toEpochMilli") else time.to_epoch_milli()
    return millis
