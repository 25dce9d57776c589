"""Kafka topics as sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, get_args

from py4j.protocol import Py4JError
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway

from forebay.api.files import timed
from forebay.api.kafka_records import KeyOf, TooLarge, WriteObject, key_of
from forebay.api.objects import ObjectStream, check_stream
from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.formats import MAX_RECORD_BYTES, Format
from forebay.connectors.kafka.admin import (
    KafkaAdmin,
    ask_kafka,
    check_topic_written,
    check_topics_read,
    check_transaction_timeout,
)
from forebay.connectors.kafka.settings import KafkaSink as SinkSpec
from forebay.connectors.kafka.settings import KafkaSource as SourceSpec
from forebay.connectors.kafka.sink import TopicSink, kafka_sink, records_name, refused_by
from forebay.connectors.kafka.source import TopicSource, kafka_source
from forebay.documents import check_document
from forebay.errors import PipelineFailed, SettingError
from forebay.flink.types import check_sink_free, check_uid_free
from forebay.records import DeadLetter, Event

DISCOVERY_S = 10.0
PATIENCE_S = 20.0
CONNECTOR = "org.apache.flink.connector.kafka.source.KafkaSource"


def read_kafka(
    env: StreamExecutionEnvironment,
    bootstrap: str,
    *topics: str,
    group: str,
    pattern: str | None = None,
    start: Literal["committed", "earliest", "latest"] | str | int | datetime = "committed",
    format: Literal["jsonl", "text"] = "jsonl",
    line_pattern: str | None = None,
    time: str | None = None,
    time_format: str = "iso8601",
    time_zone: str = "UTC",
    payload: str | None = None,
    out_of_orderness_s: float | None = None,
    until_latest: bool = False,
    properties: Mapping[str, str] | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    check: bool = True,
    name: str = "source",
) -> ObjectStream[Event]:
    """Events from the records of Kafka topics.

    An event has the fields of the record's value and a field `kafka` with `topic`, `partition`, `offset`,
    `time_ms`, `key` and `headers`: texts, or `base64:` and base64 for bytes that are not text. If the value
    has a field `kafka`, it becomes `kafka.own`. The event's position, `topic/partition@offset`, is its id.
    Offsets are in Flink's checkpoints, and are committed to `group` with each checkpoint for others to see. A
    record that cannot be read becomes a dead letter of the operator that reads the stream.

    Needs Flink's Kafka connector: `forebay connectors install kafka`.

    Args:
        env: A PyFlink environment.
        bootstrap: `HOST:PORT` of one or more brokers, separated by commas.
        topics: Names of topics.
        group: Consumer group.
        pattern: A regular expression instead of `topics`: all topics whose whole name matches.
        start: Where to begin without a checkpoint: `"committed"` (the group's offsets, else the earliest),
            `"earliest"`, `"latest"`, or the first record of a time: `"2026-01-31T12:00:00Z"` (UTC if it has
            no zone), a `datetime`, or milliseconds since the Unix epoch.
        format: `"jsonl"`: values are JSON objects; `"text"`: values are texts.
        line_pattern: For texts: a regular expression (RE2) whose named groups become fields, such as
            `(?P<at>\\S+) (?P<text>.*)`. A text that it does not match from its start becomes a dead letter.
        time: Field with the event's time; None: the record's timestamp.
        time_format, time_zone, payload: As for `read_jsonl`.
        out_of_orderness_s: Set timestamps, and watermarks this many seconds behind. All partitions then share
            one reader.
        until_latest: End at the offsets that were the latest at the start. A restored job does not end by
            itself.
        properties: Options of Kafka's own client.
        secrets: Secret options of the client, each as `{"env": NAME}` or `{"file": PATH}`.
        max_record_bytes: A longer record becomes a dead letter.
        check: Check that the topics exist, which blocks for some 20 seconds if no broker answers. False: do
            not, for example if only the machines of a cluster can reach Kafka.
        name: Name and `uid` of the source.

    Raises `SettingError` for a wrong argument, for topics that do not exist, or if the connector is missing;
    `PipelineFailed` if no broker answers.

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
            "line_pattern": line_pattern,
            "time": time,
            "time_zone": time_zone,
            "payload": payload,
            "until_latest": until_latest,
            "max_record_bytes": max_record_bytes,
            "properties": dict(properties or {}),
            "secrets": dict(secrets or {}),
        },
        what="source",
        name="read_kafka",
    )
    check_connector()
    check_uid_free(env, name, "read_kafka")
    if check:
        spec.check_access("read_kafka")
        _ask(spec, "read_kafka", lambda admin: check_topics_read(admin, spec.topics, "read_kafka: topics"))
    at = None if time is None else EventTime(time, time_format, time_zone)
    config = TopicSource(
        spec.cluster(),
        Format(
            "text" if format == "text" else "jsonl",
            at,
            max_record_bytes,
            payload=payload,
            pattern=line_pattern,
        ),
        spec.topics,
        spec.pattern,
        group,
        start=spec.start,
        # Flink ends a source only if discovery of partitions is off.
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
    key: KeyOf | None = None,
    value: Callable[[Any], Any] | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    transaction_timeout_s: float = 900.0,
    too_large: TooLarge = "fail",
    properties: Mapping[str, str] | None = None,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
    check: bool = True,
) -> ObjectStream[DeadLetter]:
    """Write each object of `stream` to a Kafka topic as JSON.

    A result or a dead letter keeps its record's key and headers, and gets the header `forebay-id`; `value`
    replaces the JSON that is written. Other objects are written as by `write_jsonl`, without a key unless
    `key` gives one. An error in `key` or `value` fails the job; after two such failures in a row it ends with
    `FunctionFailed`. Both must return the same for the same element.

    Kafka's producer sends records of at most `max.request.size` bytes, 1,048,576 unless `properties` sets it.
    The input of a larger dead letter is cut at its end, and `cut_bytes` counts the missing bytes. Any other
    larger element fails the job like an error in `value`, or with `too_large="dead_letter"` becomes a dead
    letter in the returned stream.

    Args:
        stream: As for `write_jsonl`.
        bootstrap: `HOST:PORT` of one or more brokers, separated by commas.
        topic: The topic.
        name: Names the sink and its transactions. It must never change, and no other job that writes to this
            Kafka cluster may use it.
        key: Key of the record: a template of the element's fields (of a result: those of its event), or a
            function of the element that returns a text, bytes or None. A null or empty field gives no key.
        value: A function of the element that returns what to write; None: the element.
        guarantee: `"exactly-once"`: transactions, which consumers with `read_committed` see at each
            checkpoint; `"at-least-once"`: visible at once, with duplicates after a restart.
        transaction_timeout_s: A job that is down for longer may lose results that were written and not
            committed.
        too_large: `"fail"`: an element larger than the producer sends fails the job; `"dead_letter"`: it is
            not written, and becomes a dead letter with the cause `too_large_for_sink` in the returned stream.
            Write that stream somewhere: if nothing reads it, such elements are lost.
        properties, secrets, check: As for `read_kafka`.

    Returns the dead letters of elements that were too large; empty with `too_large="fail"`.

    Raises `SettingError` for a wrong argument, for a topic that does not exist or that rejects records as
    large as the producer sends, if the connector is missing, and for `"exactly-once"` in an environment
    without checkpoints; `PipelineFailed` if no broker answers.

    >>> env = fb.environment(checkpoints="state/triage")
    >>> tickets = env.from_collection(["My router blinks red."])
    >>> ask = fb.Inference("http://127.0.0.1:8100", prompt="Which team should take this? {{ text }}")
    >>> results = fb.infer(tickets, ask).results
    >>> def team(result: fb.Result) -> dict[str, str]:
    ...     return {"team": result.answer}
    >>> refused = fb.write_kafka(
    ...     results, "broker:9092", "teams", name="triage", value=team, too_large="dead_letter"
    ... )
    >>> fb.write_jsonl(refused, "too-large")
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
    if value is not None and not callable(value):
        raise SettingError(f"write_kafka: value: expected a function, found {type(value).__name__}")
    if too_large not in get_args(TooLarge):
        raise SettingError(
            f'write_kafka: too_large: expected "fail" or "dead_letter", found {str(too_large)[:80]!r}'
        )
    made_key = key_of(key, stream.holds if isinstance(stream, ObjectStream) else None)
    if spec.guarantee == "exactly-once":
        check_checkpoints(stream)
    check_connector()
    env: Any = stream.get_execution_environment()
    check_sink_free(env, records_name(name), name)
    if check:
        spec.check_access("write_kafka")
        _ask(spec, "write_kafka", lambda admin: _check_sink(admin, spec))
    config = TopicSink(
        spec.cluster(),
        spec.topic,
        spec.guarantee,
        transactions=f"forebay-{name}",
        transaction_timeout_s=spec.transaction_timeout_s,
    )
    source: Any = stream
    read: Callable[[bytes], Any] | None = None
    if isinstance(stream, ObjectStream):
        # An answer that is an instance of a model is written as the JSON that it was made from.
        source, read = stream.encoded, decode if key is None and value is None else stream.read
    write = WriteObject(made_key, value, read, f"write_kafka {name!r}", too_large, config.limit.bytes)
    rows = kafka_sink(source, config, write, name)
    return ObjectStream(refused_by(rows), DeadLetter)


def check_checkpoints(stream: DataStream) -> None:
    env: Any = stream.get_execution_environment()
    if not env._j_stream_execution_environment.getCheckpointConfig().isCheckpointingEnabled():
        raise SettingError(
            "write_kafka: exactly-once needs checkpoints: results are visible with the next one, and this "
            'environment makes none. Make it with fb.environment(checkpoints="state/tickets"), or write with '
            'guarantee="at-least-once"'
        )


def _ask(spec: SourceSpec | SinkSpec, where: str, ask: Callable[[KafkaAdmin], None]) -> None:
    try:
        ask_kafka(spec.cluster(), ask, patience_s=PATIENCE_S)
    except PipelineFailed as error:
        raise PipelineFailed(
            f"{where}: {error}. If only the machines of a cluster reach it, leave this check out with "
            f"check=False"
        ) from None


def _check_sink(admin: KafkaAdmin, spec: SinkSpec) -> None:
    check_topic_written(admin, spec.topic, "write_kafka: topic")
    taken_bytes = admin.longest_record_bytes(spec.topic)
    spec.record_limit().check(spec.topic, taken_bytes, "write_kafka: properties")
    if spec.guarantee == "exactly-once":
        check_transaction_timeout(admin, spec.transaction_timeout_s, "write_kafka: transaction_timeout_s")


def check_connector() -> None:
    jvm = get_gateway().jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(CONNECTOR)
    except Py4JError:
        raise SettingError(
            "Flink has no Kafka connector: run `forebay connectors install kafka`, and restart the program"
        ) from None
