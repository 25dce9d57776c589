"""Results and dead letters as records of a Kafka topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyflink.common import Row, Types
from pyflink.datastream import DataStream, ProcessFunction
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from forebay.codec import decode
from forebay.connectors.formats import dead_letter_json, result_json
from forebay.connectors.kafka.cluster import HEADERS, KEY, VALUE, KafkaCluster, raw_columns, raw_table
from forebay.errors import SettingError
from forebay.records import DeadLetter, Result

ID_HEADER = "forebay-id"
CAUSE_HEADER = "forebay-cause"

RAW = Types.PRIMITIVE_ARRAY(Types.BYTE())
ROW = Types.ROW_NAMED([KEY, VALUE, HEADERS], [RAW, RAW, Types.MAP(Types.STRING(), RAW)])

Record = tuple["bytes | None", bytes, dict[str, bytes]]
"""Key, value and headers."""
ToRecord = Callable[[Any], Record]
Guarantee = Literal["at-least-once", "exactly-once"]


@dataclass(frozen=True, slots=True)
class KafkaSink:
    """A topic to write to. `exactly-once` uses transactions, visible to `read_committed` consumers with each
    checkpoint; `transactions` then begins their ids, and must be the job's own and stay the same."""

    cluster: KafkaCluster
    topic: str
    guarantee: Guarantee = "exactly-once"
    transactions: str = ""
    transaction_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        if self.guarantee == "exactly-once" and not self.transactions:
            raise SettingError("a Kafka sink that writes exactly once needs a prefix for its transactions")


def kafka_sink(
    stream: DataStream, config: KafkaSink, to_record: ToRecord | None = None, name: str | None = None
) -> None:
    """Write encoded results or dead letters to the topic, as JSON, with their records' keys and headers.

    Each also has the header `forebay-id`, the id of its request, and a dead letter `forebay-cause`. Elements
    of another kind need `to_record`. `name` is how the operator in front of the sink is called; None: as the
    topic. Nothing runs until the environment is executed. What one subtask emits stays in order within a
    partition.
    """
    env = stream.get_execution_environment()
    tables = StreamTableEnvironment.create(env)
    parallelism = stream._j_data_stream.getParallelism()
    rows = (
        stream.process(WriteRecord(to_record or encoded_record), ROW)
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


def records_name(sink: str) -> str:
    """The name of the operator in front of a sink."""
    return f"{sink}: records"


def sink_options(config: KafkaSink) -> dict[str, str]:
    """The connector's options for `config`."""
    options = {
        "topic": config.topic,
        **config.cluster.options(),
        "sink.delivery-guarantee": config.guarantee,
    }
    if config.guarantee == "exactly-once":
        options |= {
            "sink.transactional-id-prefix": config.transactions,
            "properties.transaction.timeout.ms": str(round(config.transaction_timeout_s * 1000)),
        }
    return options


class WriteRecord(ProcessFunction):
    """An element as a row of the connector's table."""

    def __init__(self, to_record: ToRecord) -> None:
        self._to_record = to_record

    def process_element(self, element: Any, ctx: ProcessFunction.Context) -> Iterator[Row]:
        key, value, headers = self._to_record(element)
        yield Row(**{KEY: key, VALUE: value, HEADERS: headers})


def encoded_record(data: bytes) -> Record:
    """Key, value and headers of what is written for an encoded result or dead letter."""
    return record_of(decode(bytes(data)))


def record_of(output: Result | DeadLetter) -> Record:
    """Key, value and headers of what is written for a result or a dead letter."""
    value = result_json(output) if isinstance(output, Result) else dead_letter_json(output)
    return output.record_key, value.encode(), headers_of(output)


def headers_of(output: Result | DeadLetter) -> dict[str, bytes]:
    """Those of its record, and Forebay's own."""
    headers = dict(output.headers)
    # What could not be read has no id of its own, but a place.
    id = output.position if output.id is None else output.id
    if id is not None:
        headers[ID_HEADER] = id.encode("utf-8", "replace")
    if isinstance(output, DeadLetter):
        headers[CAUSE_HEADER] = output.cause.encode()
    return headers
