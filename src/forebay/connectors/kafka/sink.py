"""Write results and dead letters to a Kafka topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pyflink.common import Row, Types
from pyflink.datastream import DataStream, OutputTag, ProcessFunction, RuntimeContext
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from forebay.codec import decode, encode
from forebay.connectors.base import ASSIGNMENTS
from forebay.connectors.kafka.cluster import HEADERS, KEY, VALUE, KafkaCluster, raw_columns, raw_table
from forebay.connectors.kafka.written import Record, RecordLimit, fitting_record, record_bytes, record_of
from forebay.connectors.written_counts import EndNote, WrittenCounts
from forebay.errors import SettingError, TooLargeForSink, detail_text
from forebay.flink.job_marks import KeptCounts
from forebay.flink.metric_names import TOO_LARGE, TOO_LARGE_ASSIGNMENTS, counter_of
from forebay.flink.types import BYTES, side_output
from forebay.records import DeadLetter, Result

RAW = Types.PRIMITIVE_ARRAY(Types.BYTE())
ROW = Types.ROW_NAMED([KEY, VALUE, HEADERS], [RAW, RAW, Types.MAP(Types.STRING(), RAW)])

REFUSED = OutputTag("too-large", BYTES)
Guarantee = Literal["at-least-once", "exactly-once"]


class RecordWriter(Protocol):
    def __call__(self, element: Any) -> Record: ...

    def refused(self, element: Any, why: str) -> DeadLetter:
        """If this raises, the job fails."""
        ...


@dataclass(frozen=True, slots=True)
class TopicSink:
    """`exactly-once` uses transactions; `transactions`, their ids' prefix, must be unique to the job and
    never change."""

    cluster: KafkaCluster
    topic: str
    guarantee: Guarantee = "exactly-once"
    transactions: str = ""
    transaction_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.guarantee == "exactly-once" and not self.transactions:
            raise SettingError("a Kafka sink that writes exactly once needs a prefix for its transactions")
        RecordLimit.of(self.cluster.properties)

    @property
    def limit(self) -> RecordLimit:
        return RecordLimit.of(self.cluster.properties)


@dataclass(frozen=True, slots=True)
class CountedAs:
    what: str
    run: str


def kafka_sink(
    stream: DataStream,
    config: TopicSink,
    writer: RecordWriter | None = None,
    name: str | None = None,
    *,
    counted: CountedAs | None = None,
) -> DataStream:
    """Elements other than encoded results and dead letters need a `writer`. Returns the operator before the
    sink.

    Order within a subtask is kept within a partition.
    """
    env = stream.get_execution_environment()
    tables = StreamTableEnvironment.create(env)
    parallelism = stream._j_data_stream.getParallelism()
    rows = (
        stream.process(_function(config, writer, counted), ROW)
        .name(records_name(name or config.topic))
        .set_parallelism(parallelism)
    )
    schema = raw_columns().build()
    columns = (
        Schema.new_builder()
        .column(KEY, DataTypes.BYTES())
        .column(VALUE, DataTypes.BYTES())
        .column(HEADERS, DataTypes.MAP(DataTypes.STRING(), DataTypes.BYTES()))
        .build()
    )
    statements = tables.create_statement_set()
    table = tables.from_data_stream(rows, columns)
    statements.add_insert(
        raw_table(schema, {**sink_options(config), "sink.parallelism": str(parallelism)}), table
    )
    statements.attach_as_datastream()
    return rows


def refused_by(rows: DataStream) -> DataStream:
    return side_output(rows, REFUSED)


def records_name(sink: str) -> str:
    return f"{sink}: records"


def sink_options(config: TopicSink) -> dict[str, str]:
    options = {"topic": config.topic, **config.cluster.options(), "sink.delivery-guarantee": config.guarantee}
    if config.guarantee == "exactly-once":
        options |= {
            "sink.transactional-id-prefix": config.transactions,
            "properties.transaction.timeout.ms": str(round(config.transaction_timeout_s * 1000)),
        }
    return options


def _function(config: TopicSink, writer: RecordWriter | None, counted: CountedAs | None) -> ProcessFunction:
    if writer is not None:
        return WriteRecord(writer, config)
    return WriteOutput(OutputWriter(config.limit.bytes), config, counted)


class WriteRecord(ProcessFunction):
    """Kafka's producer would fail the job if an element is too large."""

    def __init__(self, writer: RecordWriter, config: TopicSink) -> None:
        self._writer = writer
        self._topic = config.topic
        self._limit = config.limit

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_large = [counter_of(runtime_context, name) for name in self._counters()]

    def process_element(self, element: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        key, value, headers = self._writer(element)
        size = record_bytes(key, value, headers)
        if size <= self._limit.bytes:
            self._wrote(element)
            yield Row(**{KEY: key, VALUE: value, HEADERS: headers})
            return
        letter = self._writer.refused(element, self._limit.exceeded(self._topic, size))
        for counter in self._too_large:
            counter.inc()
        yield REFUSED, encode(letter)

    def _wrote(self, element: Any) -> None: ...

    def _counters(self) -> tuple[str, ...]:
        return (TOO_LARGE,)


class WriteOutput(WriteRecord):
    def __init__(self, writer: RecordWriter, config: TopicSink, counted: CountedAs | None) -> None:
        super().__init__(writer, config)
        self._counted = counted
        self._kept: KeptCounts | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        if self._counted is not None and self._counted.run:
            self._kept = KeptCounts(runtime_context, self._counted.run)
            restored = (EndNote.decode(text) for text in self._kept.restored)
            self._counts = WrittenCounts.sum(note.counts for note in restored)

    def process_element(self, element: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        return super().process_element(decode(bytes(element)), ctx)

    def _wrote(self, element: Any) -> None:
        if self._kept is not None:
            self._counts.add(element)
            self._kept.keep(self._note())

    def _counters(self) -> tuple[str, ...]:
        own = self._counted is not None and self._counted.what == ASSIGNMENTS
        return (TOO_LARGE, TOO_LARGE_ASSIGNMENTS) if own else (TOO_LARGE,)

    def close(self) -> None:
        # Flink also closes a function whose `open` failed.
        if self._kept is not None:
            self._kept.note(self._note())

    def _note(self) -> str:
        assert self._counted is not None
        assert self._kept is not None
        return EndNote(self._counted.what, self._kept.subtasks, self._counts).encode()


@dataclass(frozen=True)
class OutputWriter:
    limit_bytes: int

    def __call__(self, element: Any) -> Record:
        if isinstance(element, DeadLetter):
            return fitting_record(element, self.limit_bytes)
        return record_of(element)

    def refused(self, element: Any, why: str) -> DeadLetter:
        return too_large(element, why)


def too_large(result: Result, why: str) -> DeadLetter:
    return DeadLetter(
        raw=result.raw,
        cause=TooLargeForSink.cause,
        detail=detail_text(why),
        attempts=result.attempts,
        id=result.id,
        key=result.key,
        time_ms=result.time_ms,
        position=result.position,
        record_key=result.record_key,
        headers=result.headers,
        record_ms=result.record_ms,
        cost_pico=result.cost_pico,
    )
