"""Kafka topics as a source and as a sink, through Flink's own connector.

The connector is used as a table of raw bytes: that is where Python sees a record's key, headers, timestamp,
partition and offset, and where a value that cannot be parsed still arrives. What is parsed, is parsed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyflink.common import Row, Types
from pyflink.datastream import DataStream, MapFunction, ProcessFunction, StreamExecutionEnvironment
from pyflink.table import DataTypes, Schema, StatementSet, StreamTableEnvironment, TableDescriptor

from forebay.codec import decode, encode
from forebay.connectors.formats import Format
from forebay.connectors.letters import dead_letter_json, result_json
from forebay.connectors.types import BYTES
from forebay.errors import MalformedRecord, SettingError
from forebay.records import DeadLetter, Event, Result

FIELD = "kafka"
"""The field of an event that says where in Kafka it comes from."""
ID_HEADER = "forebay-id"
CAUSE_HEADER = "forebay-cause"

ROW = Types.ROW_NAMED(
    ["record_key", "value", "headers"],
    [
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
        Types.PRIMITIVE_ARRAY(Types.BYTE()),
        Types.MAP(Types.STRING(), Types.PRIMITIVE_ARRAY(Types.BYTE())),
    ],
)

Start = Literal["committed", "earliest", "latest"]
Guarantee = Literal["at-least-once", "exactly-once"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach Kafka: `bootstrap` servers, and properties of Kafka's own clients.

    Properties hold no secrets: they are part of the job. A secret is named where it stands, as
    `${env:NAME}` or `${file:…}`, and the client reads it in the process that connects.
    """

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Topics to read: named ones, or all whose whole name matches `pattern`.

    `start` says where to begin where no checkpoint does: at the offsets that `group` has committed (and from
    the earliest where it has none), at either end, or at the first record of a time in milliseconds. New
    partitions and topics are found every `discovery_s`. `until_latest` ends with what was there at the start.
    """

    cluster: Cluster
    format: Format = field(default_factory=Format)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    group: str | None = None
    start: Start | int = "committed"
    discovery_s: float = 10.0
    until_latest: bool = False

    def __post_init__(self) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise SettingError("a Kafka source needs either topics or a pattern of their names, and not both")
        if self.start == "committed" and self.group is None:
            raise SettingError("a Kafka source that starts at committed offsets needs a group")


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic to write to. `exactly-once` uses transactions, visible to `read_committed` consumers with each
    checkpoint; `transactions` then begins their ids, and must be the job's own and stay the same."""

    cluster: Cluster
    topic: str
    guarantee: Guarantee = "exactly-once"
    transactions: str = ""
    transaction_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.guarantee == "exactly-once" and not self.transactions:
            raise SettingError("a Kafka sink that writes exactly once needs a prefix for its transactions")


def kafka_source(env: StreamExecutionEnvironment, config: KafkaSource, name: str = "kafka") -> DataStream:
    """The topics' records as encoded records, each with its place, its key and its headers.

    A record's position is `topic/partition@offset`. Its event has the value's fields and, under `kafka`,
    `topic`, `partition`, `offset`, `time_ms`, `key` and `headers` (text; a key or header that is not UTF-8 is
    null). A tombstone, a value over the format's limit and one that cannot be parsed are dead letters. Order
    is kept within a partition.
    """
    tables = StreamTableEnvironment.create(env)
    rows = tables.to_data_stream(tables.from_descriptor(_source_table(config)))
    records = rows.map(ReadRecord(config.format), BYTES).name(f"{name}: records")
    return records.set_parallelism(rows._j_data_stream.getParallelism())


def source_options(config: KafkaSource) -> dict[str, str]:
    """The connector's options for `config`."""
    options = {
        "properties.bootstrap.servers": config.cluster.bootstrap,
        **{f"properties.{key}": value for key, value in config.cluster.properties.items()},
        "key.format": "raw",
        "key.fields": "record_key",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        "scan.topic-partition-discovery.interval": f"{round(config.discovery_s * 1000)} ms",
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
        options.setdefault("properties.auto.offset.reset", "earliest")
    else:
        options["scan.startup.mode"] = f"{config.start}-offset"
    if config.until_latest:
        options["scan.bounded.mode"] = "latest-offset"
    return options


def _source_table(config: KafkaSource) -> TableDescriptor:
    schema = (
        _columns()
        .column_by_metadata("time", DataTypes.TIMESTAMP_LTZ(3), "timestamp")
        .column_by_metadata("topic", DataTypes.STRING(), "topic", is_virtual=True)
        .column_by_metadata("part", DataTypes.INT(), "partition", is_virtual=True)
        .column_by_metadata("at", DataTypes.BIGINT(), "offset", is_virtual=True)
        .build()
    )
    return _descriptor(schema, source_options(config))


def _columns() -> Any:
    builder = Schema.new_builder()
    builder.column("record_key", DataTypes.BYTES()).column("value", DataTypes.BYTES())
    headers = DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES())
    return builder.column_by_metadata("headers", headers, "headers")


def _descriptor(schema: Schema, options: Mapping[str, str]) -> TableDescriptor:
    builder = TableDescriptor.for_connector("kafka").schema(schema)
    for key, value in options.items():
        builder.option(key, value)
    return builder.build()


class ReadRecord(MapFunction):
    """A row of the connector's table as an encoded record."""

    def __init__(self, form: Format) -> None:
        self._format = form

    def map(self, row: Any) -> bytes:
        key, value, headers, time, topic, partition, offset = row
        place = {"topic": topic, "partition": partition, "offset": offset, "time_ms": _millis(time)}
        return encode(read_record(self._format, key, value, headers or {}, place))


def read_record(
    form: Format,
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes],
    place: Mapping[str, Any],
) -> Event | DeadLetter:
    """The event in a record's value, or a dead letter; `place` has topic, partition, offset and time_ms."""
    position = f"{place['topic']}/{place['partition']}@{place['offset']}"
    record: Event | DeadLetter
    if value is None:
        record = DeadLetter(
            raw=b"", cause=MalformedRecord.cause, detail="a tombstone: it has no value", position=position
        )
    else:
        record = form.read(value, position)
    # A header without a value is one with none.
    kept = {name: content or b"" for name, content in headers.items()}
    if isinstance(record, Event):
        texts = {name: _text(content) for name, content in kept.items()}
        about = {**place, "key": None if key is None else _text(key), "headers": texts}
        record = replace(record, fields={**record.fields, FIELD: about})
    time_ms = place["time_ms"] if record.time_ms is None else record.time_ms
    return replace(record, time_ms=time_ms, record_key=key, headers=kept)


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _millis(time: Any) -> int:
    # Inside the JVM the value is a Java Instant, in a worker process PyFlink's.
    millis: int = time.toEpochMilli() if hasattr(time, "toEpochMilli") else time.to_epoch_milli()
    return millis


def kafka_sink(stream: DataStream, config: KafkaSink) -> None:
    """Write encoded results or dead letters to the topic, as JSON, with their records' keys and headers.

    Each also has the header `forebay-id`, the id of its request, and a dead letter `forebay-cause`. Nothing
    runs until the environment is executed. What one subtask emits stays in order within a partition.
    """
    env = stream.get_execution_environment()
    tables = StreamTableEnvironment.create(env)
    parallelism = stream._j_data_stream.getParallelism()
    rows = stream.process(WriteRecord(), ROW).name(f"{config.topic}: records").set_parallelism(parallelism)
    schema = _columns().build()
    columns = (
        Schema.new_builder()
        .column("record_key", DataTypes.BYTES())
        .column("value", DataTypes.BYTES())
        .column("headers", DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES()))
        .build()
    )
    statements: StatementSet = tables.create_statement_set()
    table = tables.from_data_stream(rows, columns)
    statements.add_insert(
        _descriptor(schema, {**sink_options(config), "sink.parallelism": str(parallelism)}), table
    )
    statements.attach_as_datastream()


def sink_options(config: KafkaSink) -> dict[str, str]:
    """The connector's options for `config`."""
    options = {
        "topic": config.topic,
        "properties.bootstrap.servers": config.cluster.bootstrap,
        **{f"properties.{key}": value for key, value in config.cluster.properties.items()},
        "key.format": "raw",
        "key.fields": "record_key",
        "value.format": "raw",
        "value.fields-include": "EXCEPT_KEY",
        "sink.delivery-guarantee": config.guarantee,
    }
    if config.guarantee == "exactly-once":
        options |= {
            "sink.transactional-id-prefix": config.transactions,
            "properties.transaction.timeout.ms": str(round(config.transaction_timeout_s * 1000)),
        }
    return options


class WriteRecord(ProcessFunction):
    """An encoded result or dead letter as a row of the connector's table."""

    def process_element(self, data: bytes, ctx: ProcessFunction.Context) -> Iterator[Row]:
        key, value, headers = record_of(decode(bytes(data)))
        yield Row(record_key=key, value=value, headers=headers)


def record_of(output: Result | DeadLetter) -> tuple[bytes | None, bytes, dict[str, bytes]]:
    """Key, value and headers of what is written for a result or a dead letter."""
    headers = dict(output.headers)
    if output.id is not None:
        headers[ID_HEADER] = output.id.encode("utf-8", "replace")
    if isinstance(output, Result):
        return output.record_key, result_json(output).encode(), headers
    headers[CAUSE_HEADER] = output.cause.encode()
    return output.record_key, dead_letter_json(output).encode(), headers
