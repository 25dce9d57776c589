"""Before a job starts: waits for Kafka, checks its topics, and decides where the pipeline starts in them.

A start at the checkpoint's or group's offsets can have a gap, if Kafka lacks the next records. To skip it
after a restore (`on_gap`), the source gets a new name, so that Flink does not restore it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from forebay.clients.s3.location import Location
from forebay.clock import Clock, SystemClock
from forebay.connectors.kafka.admin import (
    START_TIMEOUT_S,
    KafkaAdmin,
    Note,
    Place,
    ask_kafka,
    check_topic_written,
    check_topics_read,
    check_transaction_timeout,
    kafka_admin,
)
from forebay.connectors.kafka.cluster import AS_FIRST, Generations, KafkaCluster, TopicStart
from forebay.connectors.kafka.gaps import (
    Gap,
    TopicRanges,
    find_gaps,
    gaps_text,
    moved,
    next_generations,
    source_state,
    unread,
    with_committed,
)
from forebay.connectors.kafka.settings import KafkaSink, KafkaSource
from forebay.errors import PipelineFailed, SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import RunState, metadata_of

PATIENCE_S = 120.0

Check = Callable[[KafkaAdmin], None]


def await_brokers(
    spec: PipelineSpec,
    note: Note = lambda text, waited_s: None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """Check the topics of every Kafka of `spec` once it answers. Blocks.

    Returns the clusters' ids, by the keys of the source and the sinks. Raises `PipelineFailed` if a Kafka
    does not answer within two minutes, `KafkaRefused`, and `SettingError`.
    """
    time_ = clock or SystemClock()
    begin_s = time_.monotonic_s()
    ids: dict[str, str] = {}
    for cluster, checks in _by_cluster(_checks(spec)):

        def ask(admin: KafkaAdmin, checks: Mapping[str, Check] = checks) -> str | None:
            for check in checks.values():
                check(admin)
            return admin.cluster_id()

        id = ask_kafka(
            cluster, ask, patience_s=PATIENCE_S, begin_s=begin_s, note=note, clock=time_, sleep=sleep
        )
        if id is not None:
            ids |= dict.fromkeys(checks, id)
    return ids


def _by_cluster(
    checks: Iterable[tuple[str, KafkaCluster, Check]],
) -> list[tuple[KafkaCluster, dict[str, Check]]]:
    found: list[tuple[KafkaCluster, dict[str, Check]]] = []
    for key, cluster, check in checks:
        known = next((of for other, of in found if other == cluster), None)
        if known is None:
            found.append((cluster, {key: check}))
        else:
            known[key] = check
    return found


def _checks(spec: PipelineSpec) -> Iterator[tuple[str, KafkaCluster, Check]]:
    source = spec.source
    if isinstance(source, KafkaSource):
        yield (
            "source",
            source.cluster(),
            lambda admin: _check_source(admin, source, source.group_of(spec.name)),
        )
    for key, sink in spec.topics().items():

        def check(admin: KafkaAdmin, key: str = key, sink: KafkaSink = sink) -> None:
            _check_sink(admin, key, sink)

        yield key, sink.cluster(), check


def _check_source(admin: KafkaAdmin, source: KafkaSource, group: str) -> None:
    check_topics_read(admin, source.topics, "source.topics")
    members = admin.members(group)
    if members:
        raise SettingError(
            f"source.group: other consumers use {group!r} now ({members}); a pipeline needs its own group. "
            f"(A killed consumer counts until its session times out.)"
        )


def _check_sink(admin: KafkaAdmin, key: str, sink: KafkaSink) -> None:
    check_topic_written(admin, sink.topic, f"{key}.topic")
    taken_bytes = admin.longest_record_bytes(sink.topic)
    sink.record_limit().check(sink.topic, taken_bytes, f"{key}.properties")
    if sink.guarantee == "exactly-once":
        check_transaction_timeout(admin, sink.transaction_timeout_s, f"{key}.transaction_timeout_s")


NEW_UID_CHARS = 12


@dataclass(frozen=True, slots=True)
class KafkaStart:
    start: TopicStart = AS_FIRST
    ends: tuple[Place, ...] = ()
    gaps: tuple[Gap, ...] = ()
    replaces_offsets: bool = False

    @property
    def ids(self) -> Mapping[str, str]:
        return _newest(self.start.generations)

    def ends_of(self, state: RunState) -> tuple[Place, ...]:
        """The ends at the first start with `until_latest`; after a start without it, those of now."""
        source = state.settings.get("source")
        if state.ends is None or not isinstance(source, Mapping) or not source.get("until_latest"):
            return self.ends
        now = {(place.topic, place.partition): place.offset for place in self.ends}
        ends = ((end, now.get((end.topic, end.partition))) for end in (Place(*each) for each in state.ends))
        return tuple(replace(end, offset=min(end.offset, at)) for end, at in ends if at is not None)


def resumed(
    spec: PipelineSpec, checkpoint: Location, generations: Generations, new_uid: str, *, chosen: bool
) -> KafkaStart:
    """Return how a job resumes from `checkpoint`. Blocks.

    Records that the group has passed are not a gap, unless the checkpoint was `chosen` to repeat results.
    Raises `PipelineFailed` for a gap that must not be skipped, `SettingError`, `KafkaAway` and
    `KafkaRefused`.
    """
    source = spec.source
    if not isinstance(source, KafkaSource):
        return KafkaStart()
    state = source_state(metadata_of(checkpoint), str(checkpoint))
    places = () if state is None else state.places
    reading = source.reading_group_of(spec.name)
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        names = topic_names(source, admin)
        now = _topics(admin, names)
        if state is not None:
            # Until a reader has read a record, checkpoints lack its start position: this offset.
            places = with_committed(places, places_read(admin, source, spec.name))
        behind = find_gaps(places, now, _newest(generations))
        answered = () if chosen or not behind else admin.committed(source.group_of(spec.name))
        gaps = _skippable(spec, source, unread(behind, answered))
        start = TopicStart(
            AS_FIRST.uid if state is None else state.uid, next_generations(generations, now.ids, gaps)
        )
        if behind:
            start = replace(start, uid=new_uid[:NEW_UID_CHARS])
            known = (*admin.committed(reading), *moved(places, behind))
            admin.commit(reading, _known_or_first(known, now))
    return KafkaStart(start, now.ends, gaps, replaces_offsets=bool(behind))


def begin(spec: PipelineSpec, generations: Generations, *, first: bool, strict: bool = True) -> KafkaStart:
    """Commit the offsets at which `spec` starts without a checkpoint. Blocks.

    The `first` start begins at the source's `start`, a later one at the first unanswered records. Raises as
    `resumed`. If not `strict`, gaps are only returned, because there may be a checkpoint.
    """
    source = spec.source
    if not isinstance(source, KafkaSource):
        return KafkaStart()
    group = source.group_of(spec.name)
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        names = topic_names(source, admin)
        now = _topics(admin, names)
        gaps: tuple[Gap, ...] = ()
        if source.start == "committed" or not first:
            places = _known_or_first(admin.committed(group), now)
            gaps = find_gaps(places, now, {} if first else _newest(generations))
            places = moved(places, _skippable(spec, source, gaps) if strict else gaps)
        else:
            places = admin.offsets(names, source.start)
        admin.commit(group, places)
        admin.commit(source.reading_group_of(spec.name), places)
    start = TopicStart(generations=next_generations(generations, now.ids, gaps), watched=strict)
    return KafkaStart(start, now.ends, gaps)


def read_before(spec: PipelineSpec) -> tuple[Place, ...]:
    source = spec.source
    if not isinstance(source, KafkaSource):
        return ()
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        return places_read(admin, source, spec.name)


def places_read(admin: KafkaAdmin, source: KafkaSource, pipeline: str) -> tuple[Place, ...]:
    committed = admin.committed(source.reading_group_of(pipeline))
    return tuple(place for place in committed if source.reads(place.topic))


def topic_names(source: KafkaSource, admin: KafkaAdmin) -> tuple[str, ...]:
    if source.pattern is None:
        return source.topics
    return tuple(name for name in sorted(admin.topics()) if source.reads(name))


def _topics(admin: KafkaAdmin, names: tuple[str, ...]) -> TopicRanges:
    return TopicRanges(admin.offsets(names, "earliest"), admin.ends(names), admin.topic_ids(names))


def _newest(generations: Generations) -> dict[str, str]:
    return {topic: ids[-1] for topic, ids in generations.items() if ids}


def _known_or_first(known: Iterable[Place], now: TopicRanges) -> tuple[Place, ...]:
    found = {(place.topic, place.partition): place for place in known}
    return tuple(found.get((place.topic, place.partition), place) for place in now.begins)


def _skippable(spec: PipelineSpec, source: KafkaSource, gaps: tuple[Gap, ...]) -> tuple[Gap, ...]:
    if gaps and source.on_gap == "fail":
        raise PipelineFailed(
            f"pipeline {spec.name!r}: Kafka no longer has records that were not read. {gaps_text(gaps)}. "
            f"With `on_gap: continue` in the source, the same command skips them and counts them; --fresh "
            f"starts over at `source.start`"
        )
    return gaps
