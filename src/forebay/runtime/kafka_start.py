"""Where a pipeline begins in its topics: at its checkpoint or its group's offsets, unless Kafka no longer has
what follows them.

A gap ends the attempt, or is skipped (`on_gap`). To skip one after a restore, the partitions' offsets are
committed under the reading group, and Flink's source gets a new name: Flink then restores everything but the
source, which begins at the committed offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from forebay.config.spec import PipelineSpec
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
from forebay.runtime.state_store import metadata_of
from forebay.s3.location import Location

NEW_UID_CHARS = 12


@dataclass(frozen=True, slots=True)
class KafkaStart:
    """How a job begins: what its source is made with, where the topics end, the gaps that it skips, and
    whether the checkpoint's offsets are replaced. Empty if the source is not Kafka."""

    start: TopicStart = AS_FIRST
    ends: tuple[Place, ...] = ()
    gaps: tuple[Gap, ...] = ()
    replaces_offsets: bool = False

    @property
    def ids(self) -> Mapping[str, str]:
        """The newest known id of each topic, also of those that are not there now."""
        return _newest(self.start.generations)

    def end(self, noted: Iterable[Place]) -> tuple[Place, ...]:
        """`noted`, the ends at the first start, but no further than the topics go now."""
        now = {(place.topic, place.partition): place.offset for place in self.ends}
        ends = ((end, now.get((end.topic, end.partition))) for end in noted)
        return tuple(replace(end, offset=min(end.offset, at)) for end, at in ends if at is not None)


def resumed(
    spec: PipelineSpec, checkpoint: Location, generations: Generations, new_uid: str, *, chosen: bool
) -> KafkaStart:
    """How a job goes on from `checkpoint`; `generations` are the topics' ids so far, `new_uid` a name that no
    source had before. Blocks.

    What the pipeline's group has passed is answered and no gap, unless the checkpoint was `chosen`, to make
    results again.

    Raises `PipelineFailed` if there is a gap and the source is not to skip it, `SettingError` if the
    checkpoint cannot be read, `KafkaAway` if Kafka does not answer, `KafkaRefused` if it refuses.
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
            # Until a reader has read a record, checkpoints do not say where it begins: at this offset.
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

    The `first` start begins where the source says; a later one at the records that have no answer yet, also
    where the first began at the latest. Flink begins at committed offsets. Raises as `resumed`; not for gaps
    if not `strict`, as if there may be a checkpoint after all.
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
    """What earlier starts of `spec` have read into their checkpoints, or where they began; nothing before the
    first. `begin` sets it back. Raises as `begin`."""
    source = spec.source
    if not isinstance(source, KafkaSource):
        return ()
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        return places_read(admin, source, spec.name)


def places_read(admin: KafkaAdmin, source: KafkaSource, pipeline: str) -> tuple[Place, ...]:
    """What the pipeline of this name has read into its checkpoints. Raises as `KafkaAdmin`.

    Its group may also hold offsets in topics that an earlier pipeline of the name has read, and this one does
    not: what is left unread there is no matter of this one's.
    """
    committed = admin.committed(source.reading_group_of(pipeline))
    return tuple(place for place in committed if source.reads(place.topic))


def topic_names(source: KafkaSource, admin: KafkaAdmin) -> tuple[str, ...]:
    """The topics that `source` reads now."""
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
