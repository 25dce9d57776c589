"""Kafka topics as sources and sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from py4j.protocol import Py4JError
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from forebay.api.files import json_line, timed
from forebay.api.objects import ObjectStream, check_stream
from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import MAX_RECORD_BYTES, Format
from forebay.connectors.kafka import KafkaSink, KafkaSource, kafka_sink, kafka_source
from forebay.connectors.kafka.settings import KafkaSink as SinkSpec
from forebay.connectors.kafka.settings import KafkaSource as SourceSpec
from forebay.connectors.kafka.sink import Record, encoded_record, record_of
from forebay.documents import check_document
from forebay.errors import SettingError
from forebay.records import DeadLetter, Event, Result

DISCOVERY_S = 10.0
"""How often new partitions and topics are looked for."""
CONNECTOR = "org.apache.flink.connector.kafka.source.KafkaSource"


def read_kafka(
    env: StreamExecutionEnvironment,
    bootstrap: str,
    *topics: str,
    group: str,
    pattern: str | None = None,
    start: Literal["committed", "earliest", "latest"] | int = "committed",
    format: Literal["jsonl", "text"] = "jsonl",
    time: str | None = None,
    time_format: str = "iso8601",
    out_of_orderness_s: float | None = None,
    until_latest: bool = False,
    properties: Mapping[str, str] | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    name: str = "source",
) -> ObjectStream[Event]:
    """Events from the records of Kafka topics.

    An event has the fields of the record's value and a field `kafka` with `topic`, `partition`, `offset`,
    `time_ms`, `key` and `headers`. Its position, `topic/partition@offset`, is its id. Offsets are in Flink's
    checkpoints, and are committed to `group` with each checkpoint for others to see. A record that cannot be
    read becomes a dead letter of the operator that reads the stream.

    Needs Flink's Kafka connector: `forebay connectors install kafka`.

    Args:
        env: A PyFlink environment.
        bootstrap: `HOST:PORT` of one or more brokers, with commas between them.
        topics: Names of topics.
        group: Consumer group.
        pattern: A regular expression, instead of `topics`: all topics that match it as a whole.
        start: Where to begin without a checkpoint: `"committed"` (the group's offsets, else the earliest),
            `"earliest"`, `"latest"`, or milliseconds since the Unix epoch.
        format: `"jsonl"`: values are JSON objects; `"text"`: values are texts.
        time: Field with the event's time; None: the record's timestamp.
        time_format: As for `read_jsonl`.
        out_of_orderness_s: Give elements timestamps, and watermarks this many seconds behind. There is then
            one reader for all partitions.
        until_latest: End at the offsets that were the latest at the start. A job that was restored does not
            end by itself.
        properties: Options of Kafka's own client.
        secrets: Options of the client that are secret, each as `{"env": NAME}` or `{"file": PATH}`.
        max_record_bytes: A longer record becomes a dead letter.
        name: Name and `uid` of the source.

    Raises `SettingError` for a wrong argument, or if the connector is missing.

    >>> env = fb.environment()
    >>> tickets = fb.read_kafka(env, "broker:9092", "tickets", group="triage", start="earliest")
    """
    spec = check_document(
        SourceSpec,
        {
            "type": "kafka",
            "bootstrap": bootstrap,
            "topics": list(topics),
            "pattern": pattern,
            "group": group,
            "start": start,
            "format": format,
            "time": time,
            "until_latest": until_latest,
            "max_record_bytes": max_record_bytes,
            "properties": dict(properties or {}),
            "secrets": dict(secrets or {}),
        },
        what="source",
        name="read_kafka",
    )
    check_connector()
    at = None if time is None else EventTime(time, time_format)
    config = KafkaSource(
        spec.cluster(),
        Format("text" if format == "text" else "jsonl", at, max_record_bytes),
        spec.topics,
        spec.pattern,
        group,
        start=spec.start,
        # Flink ends a source only where it looks for no more partitions.
        discovery_s=0.0 if until_latest else DISCOVERY_S,
        until_latest=until_latest,
        # One reader for all partitions, so that one without records does not hold the watermark back.
        parallelism=None if out_of_orderness_s is None else 1,
    )
    stream = kafka_source(env, config, name)
    stream.uid(name)
    if out_of_orderness_s is not None:
        stream = timed(stream, out_of_orderness_s)
    return ObjectStream(stream, Event)


def write_kafka(
    stream: DataStream,
    bootstrap: str,
    topic: str,
    *,
    name: str,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    transaction_timeout_s: float = 900.0,
    properties: Mapping[str, str] | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write each object of `stream` to a Kafka topic as JSON.

    A result or a dead letter keeps the key and the headers of its record, and gets the header `forebay-id`.
    Other objects are written as `write_jsonl` writes them, without a key.

    Args:
        stream: As for `write_jsonl`.
        bootstrap: `HOST:PORT` of one or more brokers, with commas between them.
        topic: The topic.
        name: Names the transactions. No other job that writes to this Kafka cluster may have the same name,
            and it stays the same.
        guarantee: `"exactly-once"`: transactions, which consumers with `read_committed` see at each
            checkpoint; `"at-least-once"`: visible at once, and after a restart some come twice.
        transaction_timeout_s: A job that is down for longer may lose results that were written and not
            committed.
        properties, secrets: As for `read_kafka`.

    Raises `SettingError` for a wrong argument, or if the connector is missing.

    >>> env = fb.environment()
    >>> tickets = env.from_collection(["My router blinks red."])
    >>> ask = fb.Inference("http://127.0.0.1:8100", prompt="Which team should take this? {{ text }}")
    >>> fb.write_kafka(fb.infer(tickets, ask).results, "broker:9092", "teams", name="triage")
    """
    check_stream(stream, "write_kafka")
    spec = check_document(
        SinkSpec,
        {
            "type": "kafka",
            "bootstrap": bootstrap,
            "topic": topic,
            "guarantee": guarantee,
            "transaction_timeout_s": transaction_timeout_s,
            "properties": dict(properties or {}),
            "secrets": dict(secrets or {}),
        },
        what="sink",
        name="write_kafka",
    )
    if not isinstance(name, str) or not name:
        raise SettingError(f"write_kafka: name: expected a text, found {name!r}")
    check_connector()
    config = KafkaSink(
        spec.cluster(),
        spec.topic,
        spec.guarantee,
        transactions=f"forebay-{name}",
        transaction_timeout_s=spec.transaction_timeout_s,
    )
    encoded = isinstance(stream, ObjectStream)
    source: Any = stream.encoded if encoded else stream
    kafka_sink(source, config, encoded_record if encoded else object_record)


def object_record(value: Any) -> Record:
    """Key, value and headers for an object."""
    if isinstance(value, Result | DeadLetter):
        key, _, headers = record_of(value)
        return key, json_line(value).encode(), headers
    return None, json_line(value).encode(), {}


def check_connector() -> None:
    """Raise `SettingError` where this process's Flink has no Kafka connector."""
    jvm = get_gateway().jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(CONNECTOR)
    except Py4JError:
        raise SettingError(
            "Flink has no Kafka connector: run `forebay connectors install kafka`, and start the program anew"
        ) from None
