"""Kafka settings in a pipeline file: the cluster, topics to read, a topic to write to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.connectors.base import (
    DEAD_LETTERS,
    Connector,
    Enveloped,
    LinePattern,
    PipelineView,
    Problem,
    SinkSettings,
    Written,
    check_line_time,
)
from forebay.connectors.formats import Format
from forebay.connectors.kafka.cluster import AS_FIRST, KafkaCluster, TopicStart
from forebay.connectors.kafka.registry import RegistrySpec
from forebay.connectors.kafka.written import RecordLimit
from forebay.errors import SettingError
from forebay.fields import MAX_S, Model, PositiveFloat, Scalar, SecretField, Switch, wrong
from forebay.settings import SecretRef, read_secret

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

    from forebay.connectors.kafka.sink import TopicSink
    from forebay.connectors.kafka.source import TopicSource

OWNED = {
    "bootstrap.servers": "bootstrap",
    "group.id": "group",
    "auto.offset.reset": "start",
    "enable.auto.commit": "nothing: offsets are committed with checkpoints",
    "transactional.id": "nothing: it is made of the pipeline's name and an id",
    "transaction.timeout.ms": "transaction_timeout_s",
    "isolation.level": "isolation",
    "config.providers": "secrets",
}
SECRET = re.compile(r"password|secret|jaas|token|credential|ssl\.keystore\.key|user\.info", re.IGNORECASE)
MAX_TRANSACTION_S = 2_000_000
"""Kafka stores it as milliseconds in 32 bits."""
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _bootstrap(value: str) -> str:
    for server in value.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
            raise wrong(f"expected HOST:PORT, several with commas between, found {value[:200]!r}")
    return value


def _topic(value: str) -> str:
    if not TOPIC.fullmatch(value) or value in {".", ".."}:
        raise wrong(f"expected the name of a topic (A-Z, a-z, 0-9, '.', '_', '-'), found {value[:80]!r}")
    return value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise wrong(f"expected a regular expression, found {value!r}: {error}") from None
    return value


def _property(name: str) -> str:
    if name in OWNED:
        raise wrong(f"{name!r}: expected another property; use {OWNED[name]}")
    return name


def _public(properties: Any) -> Any:
    for name in properties if isinstance(properties, dict) else ():
        if SECRET.search(str(name)):
            raise wrong(
                f"{str(name)[:80]!r}: expected it under 'secrets', as {{env: NAME}} or {{file: PATH}}; "
                f"a secret does not belong in a file that is shared"
            )
    return properties


def _start(value: Any) -> Any:
    if isinstance(value, bool):
        raise wrong(f"expected committed, earliest, latest or a time, found {value}")
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str) and value not in {"committed", "earliest", "latest"}:
        try:
            moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            raise wrong(
                "expected committed, earliest, latest or a time such as 2026-01-31T12:00:00Z, "
                f"found {value[:80]!r}"
            ) from None
    else:
        return value
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return round(moment.timestamp() * 1000)


Topic = Annotated[str, AfterValidator(_topic)]
PropertyName = Annotated[str, Field(max_length=200), AfterValidator(_property)]


class KafkaAccess(Model):
    bootstrap: Annotated[str, AfterValidator(_bootstrap)] = Field(
        description="Addresses of brokers: HOST:PORT, several with commas between."
    )
    properties: Annotated[dict[PropertyName, Scalar], BeforeValidator(_public)] = Field(
        default_factory=dict,
        description="Properties of Kafka's client, such as `security.protocol`, passed on as they are.",
    )
    secrets: dict[PropertyName, SecretField] = Field(
        default_factory=dict,
        description="Properties that are secrets, such as `sasl.jaas.config`: where each one is, "
        "`{env: NAME}` or `{file: PATH}`. Kafka's client reads them where it runs.",
    )

    def cluster(self) -> KafkaCluster:
        return KafkaCluster(
            self.bootstrap,
            {name: _text(value) for name, value in self.properties.items()},
            {name: secret.ref() for name, secret in self.secrets.items()},
        )

    def check_access(self, key: str) -> None:
        """Raise `SettingError` if a secret is missing: Kafka's client would use the reference as its
        value."""
        for name, secret in self.secrets.items():
            try:
                _check_secret(name, secret.ref())
            except SettingError as error:
                raise SettingError(f"{key}.secrets.{name}: {error}") from None


class KafkaSource(Enveloped, KafkaAccess):
    """Records of Kafka topics. If a record has no `time` of its own, its timestamp in Kafka is used.

    In templates, `kafka` has `topic`, `partition`, `offset`, `time_ms`, `key` and `headers`; a key or header
    that is not text is `base64:` and its base64. If the value has a field `kafka`, it is `kafka.own`.
    """

    bound: ClassVar[frozenset[str] | None] = frozenset(("topics", "pattern", "format", "dead_letters"))

    type: Literal["kafka"]
    topics: Annotated[tuple[Topic, ...], Field(max_length=1000)] = Field(
        (), description="Names of topics. Either this or `pattern`."
    )
    pattern: Annotated[str, AfterValidator(_pattern), Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Regular expression of whole topic names; new topics are found. Or `topics`."
    )
    group: Annotated[str, Field(min_length=1, max_length=249)] | None = Field(
        None,
        description="Group that commits offsets once all results before them are committed, for others to "
        "see; null: `forebay-` and the pipeline's name. Two pipelines must not share one. Flink uses "
        "another one, this name and `-read`.",
    )
    start: Annotated[Literal["committed", "earliest", "latest"] | int, BeforeValidator(_start)] = Field(
        "committed",
        description="Where to begin without a checkpoint: at the `committed` offsets of the group "
        "(the `earliest` if it has none), at either end, or at the first record of a time (ISO 8601).",
    )
    format: Literal["jsonl", "text", "registry"] = Field(
        "jsonl",
        description="What values are: a JSON object each, `text`, with the field `text` and those that "
        "`line_pattern` names, or `registry`: "
        "Avro, JSON or Protobuf with a schema's id in front, whose schema a `registry` holds.",
    )
    line_pattern: LinePattern | None = Field(
        None,
        description="For text: as of `text` files. `.` matches no line break, so a group ends at the first "
        "one; begin the pattern with `(?s)` for values of several lines.",
    )
    registry: RegistrySpec | None = Field(
        None, description="The schema registry; needed with `format: registry`."
    )
    dead_letters: Switch = Field(
        False,
        description="true: values are dead letters that a pipeline wrote; their original records are read "
        "again, in this `format`, with their keys, headers, places and ids.",
    )
    on_gap: Literal["fail", "continue"] = Field(
        "fail",
        description="If Kafka no longer has records that were not read (retention, a topic that was created "
        "again): `fail` names them and ends the run; `continue` names, counts and skips them.",
    )
    discovery_s: PositiveFloat = Field(
        10.0, le=MAX_S, description="How often to look for new partitions and topics."
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed",
        description="`read_committed`: only records of committed transactions; "
        "`read_uncommitted`: also those of open and aborted ones.",
    )
    until_latest: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="true: end once the records that exist at the first start have their answers (later ones "
        "may have theirs, too); false: never end.",
    )

    def reads(self, topic: str) -> bool:
        return topic in self.topics if self.pattern is None else bool(re.fullmatch(self.pattern, topic))

    def group_of(self, pipeline: str) -> str:
        return self.group or f"forebay-{pipeline}"

    def reading_group_of(self, pipeline: str) -> str:
        """Flink commits offsets of records read, answered or not, under this group."""
        return f"{self.group_of(pipeline)}-read"

    def model_post_init(self, context: Any, /) -> None:
        if bool(self.topics) == (self.pattern is not None):
            raise wrong("expected either 'topics' or 'pattern'")
        if (self.format == "registry") != (self.registry is not None):
            raise wrong("expected 'format: registry' and 'registry' together, found one of them")
        if self.format == "text" and self.payload is not None:
            raise wrong("expected no 'payload' with format: text; JSON objects are read with format: jsonl")
        if self.format == "text":
            check_line_time(self.time, self.line_pattern)
        elif self.line_pattern is not None:
            raise wrong(f"expected no 'line_pattern' with format: {self.format}; text has one")
        if self.limit is not None:
            raise wrong("expected no 'limit' with type: kafka; 'until_latest' ends with what is there")

    def summary(self) -> str:
        return f"kafka: {', '.join(self.topics) or f'topics like {self.pattern}'} at {self.bootstrap}"

    def problems(self, pipeline: PipelineView) -> Iterator[Problem]:
        # Without `time`, a record's timestamp in Kafka is used: no field has to be named.
        for key, sink in pipeline.sinks().items():
            if not isinstance(sink, KafkaSink) or not self.reads(sink.topic):
                continue
            if _servers(sink.bootstrap) & _servers(self.bootstrap):
                yield f"{key}.topic", "expected a topic apart from those of the source, found one of them"

    def readers(self, pipeline: PipelineView) -> int:
        # One reader for all partitions: with several, a reader of idle partitions would hold the watermark
        # back, and marking it idle would close windows without their answers.
        return 1 if pipeline.event_time is not None else pipeline.parallelism

    def check_secrets(self, key: str) -> None:
        self.check_access(key)
        if self.registry is not None:
            self.registry.check(key)

    def topics_of(self, pipeline: PipelineView, start: TopicStart = AS_FIRST) -> TopicSource:
        """`until_latest` also reads past the end: later checkpoints lack partitions that Flink has finished,
        so a kill before their last offset is committed would lose records."""
        from forebay.connectors.kafka.source import TopicSource

        return TopicSource(
            self.cluster(),
            Format(
                kind="text" if self.format == "text" else "jsonl",
                time=self.event_time(),
                max_record_bytes=self.max_record_bytes,
                payload=self.payload,
                pattern=self.line_pattern,
            ),
            self.topics,
            self.pattern,
            self.reading_group_of(pipeline.name),
            discovery_s=self.discovery_s,
            isolation=self.isolation,
            registry=None if self.registry is None else self.registry.registry(),
            parallelism=1 if pipeline.event_time is not None else None,
            letters=self.dead_letters,
            reset="none" if start.watched or self.on_gap == "fail" else "earliest",
            uid=start.uid,
            generations=start.generations,
        )

    def stream(
        self, env: StreamExecutionEnvironment, pipeline: PipelineView, start: TopicStart = AS_FIRST
    ) -> DataStream:
        from forebay.connectors.kafka.source import kafka_source

        return kafka_source(env, self.topics_of(pipeline, start))


class KafkaSink(SinkSettings, KafkaAccess):
    """A Kafka topic, one JSON object a record, with the key and headers of the record that it answers.

    The header `forebay-id` is the request's id, and `forebay-cause` the cause of a dead letter. A record may
    have `max.request.size` bytes (of `properties`; 1,048,576 by default): a larger result becomes a dead
    letter, and the input of a larger dead letter is cut.
    """

    bound: ClassVar[frozenset[str] | None] = frozenset()

    type: Literal["kafka"]
    topic: Topic = Field(description="The topic, which must exist.")
    guarantee: Literal["exactly-once", "at-least-once"] = Field(
        "exactly-once",
        description="`exactly-once`: in transactions, seen by `read_committed` consumers with each "
        "checkpoint; `at-least-once`: seen at once, and again after a recovery.",
    )
    transaction_timeout_s: PositiveFloat = Field(
        900.0,
        le=MAX_TRANSACTION_S,
        description="How long a transaction may stay open: longer than the pipeline may be down, and no "
        "longer than the brokers allow (`transaction.max.timeout.ms`).",
    )

    def model_post_init(self, context: Any, /) -> None:
        try:
            self.record_limit()
        except SettingError as error:
            raise wrong(f"properties.{error}") from None

    def record_limit(self) -> RecordLimit:
        return RecordLimit.of(self.properties)

    def summary(self) -> str:
        return f"topic {self.topic} at {self.bootstrap}, {self.guarantee}"

    def check_secrets(self, key: str) -> None:
        self.check_access(key)

    def topic_of(self, written: Written) -> TopicSink:
        from forebay.connectors.kafka.sink import TopicSink

        return TopicSink(
            self.cluster(),
            self.topic,
            self.guarantee,
            transactions=transaction_prefix(written.pipeline, written.what, written.transactions),
            transaction_timeout_s=self.transaction_timeout_s,
        )

    def attach(self, records: DataStream, written: Written) -> DataStream | None:
        from forebay.connectors.kafka.sink import CountedAs, kafka_sink, refused_by

        counted = CountedAs(written.what, written.run)
        rows = kafka_sink(records, self.topic_of(written), counted=counted)
        return refused_by(rows) if written.what != DEAD_LETTERS else None


def transaction_prefix(pipeline: str, what: str, id: str) -> str:
    """A job aborts all open transactions with this prefix. `id`: of the job, or on Kubernetes of the
    state."""
    return f"forebay-{pipeline}-{id}-{what}"


def _check_secret(name: str, ref: SecretRef) -> None:
    read_secret(ref)
    if name.endswith("password") and ref.file is not None and Path(ref.file).read_bytes().endswith(b"\n"):
        raise SettingError(
            f"secret file {ref.file} ends with a line break, which Kafka's client takes for a part of the "
            f"password; remove it"
        )


def _servers(bootstrap: str) -> set[str]:
    return {server.strip() for server in bootstrap.split(",")}


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


KAFKA = Connector(KafkaSource, KafkaSink)
