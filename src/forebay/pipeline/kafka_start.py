"""Where a pipeline starts in its topics: at its checkpoint's or group's offsets, unless Kafka lacks the next
records.

Such a gap ends the attempt or is skipped (`on_gap`). To skip one after a restore, offsets are committed under
the reading group and Flink's source gets a new name: Flink then restores everything except the source, which
starts at the committed offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from forebay.clients.s3.location import Location
from forebay.connectors.kafka.admin import START_TIMEOUT_S, KafkaAdmin, Place, kafka_admin
from forebay.connectors.kafka.gaps import (
    Gap,
    Topics,
    find_gaps,
    gaps_text,
    moved,
    next_generations,
    unread,
    with_committed,
)
from forebay.connectors.kafka.settings import KafkaSource
from forebay.connectors.kafka.source_state import source_state
from forebay.connectors.kafka.start import AS_FIRST, Generations, TopicStart
from forebay.errors import PipelineFailed
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import metadata_of

NEW_UID_CHARS = 12


@dataclass(frozen=True, slots=True)
class KafkaStart:
    """A job's Kafka start: its source's settings, the topics' ends, the skipped gaps, and whether the
    checkpoint's offsets are replaced. Empty for other sources.
    """

    start: TopicStart = AS_FIRST
    ends: tuple[Place, ...] = ()
    gaps: tuple[Gap, ...] = ()
    replaces_offsets: bool = False

    @property
    def ids(self) -> Mapping[str, str]:
        """The newest known id of each topic, including deleted ones."""
        return _newest(self.start.generations)

    def end(self, noted: Iterable[Place]) -> tuple[Place, ...]:
        """Limit `noted`, the ends at the first start, to the topics' current ends."""
        now = {(place.topic, place.partition): place.offset for place in self.ends}
        ends = ((end, now.get((end.topic, end.partition))) for end in noted)
        return tuple(replace(end, offset=min(end.offset, at)) for end, at in ends if at is not None)


def resumed(
    spec: PipelineSpec, checkpoint: Location, generations: Generations, new_uid: str, *, chosen: bool
) -> KafkaStart:
    """Return how a job resumes from `checkpoint`; blocks.

    `generations` are the topics' ids so far, `new_uid` a source name not used before. Records that the group
    has passed are answered and not a gap, unless the checkpoint was `chosen` to repeat results.

    Raises `PipelineFailed` for a gap that must not be skipped, `SettingError` if the checkpoint cannot be
    read, `KafkaAway` if Kafka does not answer, `KafkaRefused` if it refuses.
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
    """Commit where a start of `spec` without a checkpoint begins; blocks.

    The `first` start begins at the source's `start`; a later one at the first unanswered records.
    Raises as `resumed`; if not `strict`, gaps are only returned, because there may be a checkpoint.
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
    """Return what earlier starts have read into checkpoints, or where they began; empty before the first
    start.

    `begin` resets it. Raises as `begin`.
    """
    source = spec.source
    if not isinstance(source, KafkaSource):
        return ()
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        return places_read(admin, source, spec.name)


def places_read(admin: KafkaAdmin, source: KafkaSource, pipeline: str) -> tuple[Place, ...]:
    """Return what the pipeline has read into its checkpoints, without topics that it no longer reads. Raises
    as `KafkaAdmin`.
    """
    committed = admin.committed(source.reading_group_of(pipeline))
    return tuple(place for place in committed if source.reads(place.topic))


def topic_names(source: KafkaSource, admin: KafkaAdmin) -> tuple[str, ...]:
    if source.pattern is None:
        return source.topics
    return tuple(name for name in sorted(admin.topics()) if source.reads(name))


def _topics(admin: KafkaAdmin, names: tuple[str, ...]) -> Topics:
    return Topics(admin.offsets(names, "earliest"), admin.ends(names), admin.topic_ids(names))


def _newest(generations: Generations) -> dict[str, str]:
    return {topic: ids[-1] for topic, ids in generations.items() if ids}


def _known_or_first(known: Iterable[Place], now: Topics) -> tuple[Place, ...]:
    """Each partition's last place in `known`, or its beginning."""
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
