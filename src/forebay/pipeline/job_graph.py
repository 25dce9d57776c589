"""Builds the Flink job of a checked specification: source, inference, sinks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from forebay.apps.graph import InferenceOptions
from forebay.connectors.base import ASSIGNMENTS, DEAD_LETTERS, RESULTS, Written
from forebay.connectors.kafka.cluster import AS_FIRST, TopicStart
from forebay.connectors.kafka.settings import KafkaSource
from forebay.engine.prompt import FieldTemplate
from forebay.fleet.autoscale.settings import ScalingLink
from forebay.fleet.discovery import ReplicaList
from forebay.flink.event_time import with_event_time
from forebay.flink.infer import infer
from forebay.flink.metrics import READER
from forebay.pipeline.inference import call_of
from forebay.pipeline.spec import PipelineSpec
from forebay.records import Event

if TYPE_CHECKING:
    from pyflink.datastream import StreamExecutionEnvironment

OPERATOR = "infer"


def _text(template: FieldTemplate, event: Event) -> str:
    return template.render(event.fields, time_ms=event.time_ms)


def runs_only_ours(spec: PipelineSpec) -> bool:
    parts = (spec.source, spec.sink, spec.dead_letters)
    return all(type(part).__module__.startswith("forebay.") for part in parts)


def build(
    spec: PipelineSpec,
    env: StreamExecutionEnvironment,
    *,
    replicas: ReplicaList,
    model: str,
    scaling: ScalingLink | None = None,
    job: str = "",
    transactions: str = "",
    run: str = "",
    grows: bool = False,
    topics: TopicStart = AS_FIRST,
) -> None:
    """Add the pipeline to `env`; nothing runs until it is executed.

    Files are named after `job`, the job's future id; Kafka transactions after `transactions`. If the output
    `grows`, files of the run with id `run` are combined.
    """
    if isinstance(spec.source, KafkaSource):
        stream = spec.source.stream(env, spec, topics)
    else:
        stream = spec.source.stream(env, spec)
    # Flink's generated names change with operator chaining, and checkpoint state is assigned by name.
    stream.uid(spec.source.uid).name(READER)
    has_clock = spec.application is not None and spec.application.own_clock
    if spec.event_time is not None and not has_clock:
        late_ms = round(spec.event_time.out_of_orderness_s * 1000)
        stream = with_event_time(stream, out_of_orderness_ms=late_ms)
    key, id = spec.key_template(), spec.id_template()
    parts = InferenceOptions(
        call_of(spec, replicas=replicas, model=model, scaling=scaling),
        key=None if key is None else partial(_text, key),
        id=None if id is None else partial(_text, id),
        capacity=spec.capacity,
        shards=spec.shards,
        event_time=spec.event_time is not None,
        timeline=spec.timeline,
        parallelism=spec.parallelism,
        name=OPERATOR,
    )
    if spec.application is None:
        answered = infer(stream, ordering=spec.ordering, one_core=runs_only_ours(spec), **vars(parts))
    else:
        answered = spec.application.build(stream, parts)

    def written(what: str) -> Written:
        return Written(what, spec.name, job, transactions, run, grows)

    refused = [spec.sink.attach(answered.results, written(RESULTS))]
    if spec.assignments is not None and answered.assignments is not None:
        refused.append(spec.assignments.attach(answered.assignments, written(ASSIGNMENTS)))
    letters = answered.dead_letters
    for each in refused:
        letters = letters if each is None else letters.union(each)
    spec.dead_letters.attach(letters, written(DEAD_LETTERS))
