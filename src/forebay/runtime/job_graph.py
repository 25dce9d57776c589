"""From a checked specification to a Flink job: source, inference, sinks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.apps import graph
from forebay.apps.graph import InferenceOptions
from forebay.apps.summaries import graph as graph_summary
from forebay.apps.topics.graph import topics
from forebay.apps.trends.graph import trends
from forebay.config.applications import COUNTING
from forebay.config.kafka import KafkaSink, KafkaSource
from forebay.config.sources import (
    CsvSource,
    DeadLetterSource,
    FileSource,
    GeneratorSource,
    SseSource,
    WebSocketSource,
)
from forebay.config.spec import JsonlSink, PipelineSpec
from forebay.connectors import kafka
from forebay.connectors.event_time import with_event_time
from forebay.connectors.feed_source import Polled, polled_source
from forebay.connectors.files import Files, file_source
from forebay.connectors.formats import Format
from forebay.connectors.generator import Burst, Generator, generator_source
from forebay.connectors.jars import KAFKA, installed_jar
from forebay.connectors.jetstream import JetstreamFeed
from forebay.connectors.json_lines import dead_letter_lines, result_lines
from forebay.connectors.kafka import kafka_sink, kafka_source
from forebay.connectors.replay import ReplaySpeed, replay_source
from forebay.connectors.sinks import JsonlFiles, StandardOutput, jsonl_sink, standard_output_sink
from forebay.connectors.sse import SseFeed
from forebay.engine.prompt import FieldTemplate
from forebay.fleet.replicas.discovery import ReplicaList
from forebay.flink.infer import InferenceStreams, infer
from forebay.records import Event
from forebay.runtime.inference import call_of
from forebay.runtime.kafka_transactions import DEAD_LETTERS, RESULTS, transaction_prefix
from forebay.settings import Settings

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment

OPERATOR = "infer"
AHEAD_MS = 24 * 3_600_000
"""An event further ahead of the clock has a wrong time, and does not move event time."""
BUILDERS: dict[str, Callable[[Any, DataStream, InferenceOptions], InferenceStreams]] = {
    "sessions": graph.stateful,
    "summary": graph_summary.build,
    "topics": topics,
    "trends": trends,
}
"""What puts each application into a job, by its `type`."""


@dataclass(frozen=True)
class TextOf:
    """A template as the function that the operator takes for keys and ids."""

    template: FieldTemplate

    def __call__(self, event: Event) -> str:
        return self.template.render(event.fields, time_ms=event.time_ms)


def build(
    spec: PipelineSpec,
    env: StreamExecutionEnvironment,
    *,
    replicas: ReplicaList,
    model: str,
    job: str = "",
    state_id: str | None = None,
) -> None:
    """Put the whole pipeline into `env`; nothing runs until it is executed. `job` is the id that the job will
    have: files are named after it. `state_id` is that of the pipeline's state: transactions are named after
    it."""
    stream = source_stream(spec, env)
    # A name made by Flink changes with what it is chained to, and with it where a checkpoint's state goes.
    stream.uid("source")
    has_clock = spec.application is not None and spec.application.type in COUNTING
    if spec.event_time is not None and not has_clock:
        late_ms = round(spec.event_time.out_of_orderness_s * 1000)
        stream = with_event_time(stream, out_of_orderness_ms=late_ms, ahead_ms=AHEAD_MS)
    key, id = spec.key_template(), spec.id_template()
    parts = InferenceOptions(
        call_of(spec, replicas=replicas, model=model),
        key=None if key is None else TextOf(key),
        id=None if id is None else TextOf(id),
        capacity=spec.capacity,
        shards=spec.shards,
        event_time=spec.event_time is not None,
        parallelism=spec.parallelism,
        name=OPERATOR,
    )
    if spec.application is None:
        answered = infer(stream, ordering=spec.ordering, **vars(parts))
    else:
        application = spec.application
        answered = BUILDERS[application.type](application.settings(), stream, parts)
    if isinstance(spec.sink, KafkaSink):
        kafka_sink(answered.results, topic_of(spec, RESULTS, spec.sink, state_id))
    elif isinstance(spec.sink, JsonlSink):
        jsonl_sink(result_lines(answered.results), JsonlFiles(Path(spec.sink.path), job), uid="results")
    else:
        standard_output_sink(result_lines(answered.results), StandardOutput())
    if isinstance(spec.dead_letters, KafkaSink):
        kafka_sink(answered.dead_letters, topic_of(spec, DEAD_LETTERS, spec.dead_letters, state_id))
    else:
        letters = JsonlFiles(Path(spec.dead_letters.path), job)
        jsonl_sink(dead_letter_lines(answered.dead_letters), letters, uid="dead-letters")


def topic_of(spec: PipelineSpec, what: str, sink: KafkaSink, state_id: str | None) -> kafka.KafkaSink:
    """A topic as the connector takes it, for what is in it (`RESULTS` or `DEAD_LETTERS`)."""
    return kafka.KafkaSink(
        sink.cluster(),
        sink.topic,
        sink.guarantee,
        transactions=transaction_prefix(spec, what, state_id),
        transaction_timeout_s=sink.transaction_timeout_s,
    )


def topics_of(spec: PipelineSpec, source: KafkaSource) -> kafka.KafkaSource:
    """The source's topics as the connector takes them, from the offsets that a first start has committed.

    Also one that ends goes on to read: a partition that Flink has read to its end is in no later
    checkpoint, and a kill before its last offset is committed would leave that behind for ever.
    """
    return kafka.KafkaSource(
        source.cluster(),
        Format(
            kind="text" if source.format == "text" else "jsonl",
            time=source.event_time(),
            max_record_bytes=source.max_record_bytes,
        ),
        source.topics,
        source.pattern,
        source.reading_group_of(spec.name),
        discovery_s=source.discovery_s,
        isolation=source.isolation,
        registry=None if source.registry is None else source.registry.registry(),
        # One reader for all partitions, so that there is one clock: a reader whose partitions are idle would
        # hold the watermark back, and to mark it as idle would close windows without their answers.
        parallelism=1 if spec.event_time is not None else None,
    )


def connector_jars(spec: PipelineSpec, settings: Settings) -> tuple[Path, ...]:
    """The jars of Flink's connectors that the pipeline needs. Raises `SettingError` where one is missing."""
    if isinstance(spec.source, KafkaSource) or spec.topics():
        return (installed_jar(KAFKA, settings.connectors),)
    return ()


def source_stream(spec: PipelineSpec, env: StreamExecutionEnvironment) -> DataStream:
    """The pipeline's source as a stream of encoded records."""
    source = spec.source
    if isinstance(source, GeneratorSource):
        return generator_source(env, generator_of(source))
    if isinstance(source, SseSource | WebSocketSource):
        return polled_source(env, _feed(source))
    if isinstance(source, KafkaSource):
        return kafka_source(env, topics_of(spec, source))
    files = files_of(source)
    if isinstance(source, FileSource) and source.replay is not None:
        return replay_source(env, files, ReplaySpeed(source.replay.speed))
    return file_source(env, files)


def files_of(source: FileSource | DeadLetterSource) -> Files:
    """The files that a source of files reads, and how."""
    if isinstance(source, FileSource):
        return Files(Path(source.path), _format(source), follow=source.follow, limit=source.limit)
    form = Format(
        kind=source.format,
        max_record_bytes=source.max_record_bytes,
        columns=source.columns or (),
        delimiter=source.delimiter,
    )
    return Files(Path(source.path), form, letters=True, limit=source.limit)


def generator_of(source: GeneratorSource) -> Generator:
    """The made-up posts of a source."""
    burst = source.burst
    bursts = () if burst is None else (Burst(**dict(burst)),)
    return Generator(source.count, source.rate, bursts, source.seed, paced=source.paced)


def _format(source: FileSource) -> Format:
    form = Format(time=source.event_time(), max_record_bytes=source.max_record_bytes)
    if isinstance(source, CsvSource):
        return replace(form, kind="csv", columns=source.columns or (), delimiter=source.delimiter)
    return form


def _feed(source: SseSource | WebSocketSource) -> Polled:
    form = Format(time=source.event_time(), max_record_bytes=source.max_record_bytes)
    feed: SseFeed | JetstreamFeed
    if isinstance(source, SseSource):
        feed = SseFeed(source.url, source.header_values(), source.max_record_bytes, source.idle_timeout_s)
    else:
        feed = JetstreamFeed(source.url, (), source.header_values(), silence_s=source.idle_timeout_s)
    return Polled(feed, form, limit=source.limit)
