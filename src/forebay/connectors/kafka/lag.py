"""How many records wait in the topics that a job reads: ends of partitions less the job's place in them.

The place is what Flink's source says of itself (`KafkaSourceReader.topic.*.partition.*.currentOffset`): the
record that it took last. Two other sources were measured and are not used, with 2,200 records in the topic
and an engine that took 8 a second:

- Flink's standard `pendingRecords` (and Kafka's `records-lag-max`, from which it is made) said 0, then 500,
  while 2,100 waited. Kafka's consumer fetches hundreds of records at once, which count as read, and it hears
  of new ones only when it fetches again. Held back by an engine it fetches once in minutes.
- Committed offsets lie behind by what was answered since the last checkpoint, and behind a slow engine by
  much more: the thread that commits them waits until the records that it fetched are taken. They stood still
  for 14 s and seven checkpoints. They count only where the source has not said anything yet.

In between, a handful of records are neither in the topic nor taken up by the operator.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from py4j.protocol import Py4JError

from forebay.connectors.kafka.admin import KafkaAdmin, KafkaAway, Place, lag
from forebay.connectors.kafka.source import KafkaSource

CURRENT = re.compile(r"KafkaSourceReader\.topic\.(.+)\.partition\.(\d+)\.currentOffset$")
REPLACED = re.compile(r"[ .:,]")
"""Characters of a name that Flink replaces in its metrics by an underscore."""

Metrics = Callable[[], Mapping[str, float]]
"""Gives the job's metrics whose names `is_place` takes: names, and the highest value of any subtask."""


def is_place(metric: str) -> bool:
    """Whether a metric of that name says where a source is in a partition."""
    return CURRENT.search(metric) is not None


def places(metrics: Mapping[str, float], partitions: Iterable[Place]) -> tuple[Place, ...]:
    """Where the source is in each of `partitions` that it has taken a record of: the offset of the next one.

    Topics whose names differ only in characters that Flink replaces cannot be told apart: both get the
    highest place.
    """
    said: dict[tuple[str, int], int] = {}
    for name, value in metrics.items():
        found = CURRENT.search(name)
        # NaN and -1: not one record yet.
        if found is not None and value >= 0:
            at = (found[1], int(found[2]))
            said[at] = max(said.get(at, 0), int(value) + 1)
    known = ((place, said.get((REPLACED.sub("_", place.topic), place.partition))) for place in partitions)
    return tuple(Place(at.topic, at.partition, offset) for at, offset in known if offset is not None)


def first_known(*choices: Iterable[Place]) -> tuple[Place, ...]:
    """Each partition's place in the first of `choices` that has one."""
    found: dict[tuple[str, int], Place] = {}
    for choice in choices:
        for place in choice:
            found.setdefault((place.topic, place.partition), place)
    return tuple(found.values())


def furthest(*choices: Iterable[Place]) -> tuple[Place, ...]:
    """Each partition's place that is furthest of those in `choices`."""
    found: dict[tuple[str, int], Place] = {}
    for place in itertools.chain(*choices):
        at = (place.topic, place.partition)
        found[at] = max(place, found.get(at, place), key=lambda each: each.offset)
    return tuple(found.values())


class LagProbe:
    """Counts the records that wait for one job.

    `restored`: the job goes on from a checkpoint, so that committed offsets are near its place wherever
    `source.start` would have begun. `before`: what earlier starts had read, where this one has set the
    committed offsets back, for the case that it goes on from no checkpoint. Whichever is further counts.
    """

    def __init__(
        self, source: KafkaSource, metrics: Metrics, *, restored: bool, before: Sequence[Place] = ()
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._before = tuple(before)
        self._commits = restored or source.start == "committed"
        self._begins: tuple[Place, ...] | None = None
        self._taken: dict[tuple[str, int], int] = {}
        self.read = 0
        """Records that the job has taken, as far as counts have seen it; what a restart took again counts
        again. They are counted in offsets, like those that wait."""

    def count(self, admin: KafkaAdmin) -> int:
        """The records that wait now; blocks for a few calls.

        Exact up to the records taken while it asks, for topics that are neither compacted nor written in
        transactions: there, offsets without a record count too. Raises `LaunchError` (`KafkaAway`) where
        Kafka or Flink does not answer.
        """
        try:
            return self._count(admin)
        except (Py4JError, OSError) as gone:
            raise KafkaAway(f"Kafka did not report its backlog: {type(gone).__name__}") from None

    def _count(self, admin: KafkaAdmin) -> int:
        topics = self._topics(admin)
        ends = admin.ends(topics)
        if self._begins is None:
            # Before it has read anything, a source begins where its first partitions say; later ones begin
            # with their first record.
            start = self._source.start
            self._begins = admin.offsets(topics, "earliest" if start == "committed" else start)
        committed = admin.committed(self._source.group) if self._commits and self._source.group else ()
        committed = furthest(committed, self._before)
        said = places(self._metrics(), ends)
        self._note(said, first_known(committed, self._begins))
        return lag(ends, first_known(said, committed, self._begins))

    def _note(self, said: Iterable[Place], begins: Iterable[Place]) -> None:
        if not self._taken:
            self._taken = {(place.topic, place.partition): place.offset for place in begins}
        for place in said:
            at = (place.topic, place.partition)
            # One that goes back was restored. Of one that came later, it is not known where it began.
            self.read += max(place.offset - self._taken.get(at, place.offset), 0)
            self._taken[at] = place.offset

    def _topics(self, admin: KafkaAdmin) -> tuple[str, ...]:
        if self._source.pattern is None:
            return self._source.topics
        wanted = re.compile(self._source.pattern)
        return tuple(name for name in admin.topics() if wanted.fullmatch(name))
