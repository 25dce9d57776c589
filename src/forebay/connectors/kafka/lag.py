"""Count the records waiting in a job's topics: the partitions' ends minus the job's positions
(`currentOffset`).

Flink's `pendingRecords` showed 500 while 2,100 waited, because records fetched count as read; committed
offsets did not move for seven checkpoints.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from py4j.protocol import Py4JError

from forebay.connectors.kafka.admin import KafkaAdmin, KafkaAway, Place, lag
from forebay.connectors.kafka.source import TopicSource

CURRENT = re.compile(r"KafkaSourceReader\.topic\.(.+)\.partition\.(\d+)\.currentOffset$")
REPLACED = re.compile(r"[ .:,]")

Metrics = Callable[[], Mapping[str, float]]


def is_place(metric: str) -> bool:
    return CURRENT.search(metric) is not None


def places(metrics: Mapping[str, float], partitions: Iterable[Place]) -> tuple[Place, ...]:
    """Topics whose names differ only in replaced characters share a metric: both get the highest offset."""
    reported: dict[tuple[str, int], int] = {}
    for name, value in metrics.items():
        found = CURRENT.search(name)
        # NaN and -1: no record yet.
        if found is not None and value >= 0:
            at = (found[1], int(found[2]))
            reported[at] = max(reported.get(at, 0), int(value) + 1)
    known = ((place, reported.get((REPLACED.sub("_", place.topic), place.partition))) for place in partitions)
    return tuple(Place(at.topic, at.partition, offset) for at, offset in known if offset is not None)


def first_known(*choices: Iterable[Place]) -> tuple[Place, ...]:
    found: dict[tuple[str, int], Place] = {}
    for choice in choices:
        for place in choice:
            found.setdefault((place.topic, place.partition), place)
    return tuple(found.values())


def furthest(*choices: Iterable[Place]) -> tuple[Place, ...]:
    found: dict[tuple[str, int], Place] = {}
    for place in itertools.chain(*choices):
        at = (place.topic, place.partition)
        found[at] = max(place, found.get(at, place), key=lambda each: each.offset)
    return tuple(found.values())


class LagProbe:
    """`restored`: committed offsets are near the job's position. `before`: offsets read by earlier starts,
    if this one set the committed offsets back."""

    def __init__(
        self, source: TopicSource, metrics: Metrics, *, restored: bool, before: Sequence[Place] = ()
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._before = tuple(before)
        self._commits = restored or source.start == "committed"
        self._begins: tuple[Place, ...] | None = None
        self._taken: dict[tuple[str, int], int] = {}
        self.read = 0
        """Records repeated after a restart count again."""

    def count(self, admin: KafkaAdmin) -> int:
        """Blocks. Offsets without a record count too. Raises `LaunchError` (`KafkaAway`)."""
        try:
            return self._count(admin)
        except (Py4JError, OSError) as gone:
            raise KafkaAway(f"Kafka did not report its backlog: {type(gone).__name__}") from None

    def _count(self, admin: KafkaAdmin) -> int:
        topics = self._topics(admin)
        ends = admin.ends(topics)
        if self._begins is None:
            # Until it has read a record, a partition known at the start begins at `source.start`; a later one
            # at its first record.
            start = self._source.start
            self._begins = admin.offsets(topics, "earliest" if start == "committed" else start)
        committed = admin.committed(self._source.group) if self._commits and self._source.group else ()
        committed = furthest(committed, self._before)
        reported = places(self._metrics(), ends)
        self._note(reported, first_known(committed, self._begins))
        return lag(ends, first_known(reported, committed, self._begins))

    def _note(self, read: Iterable[Place], begins: Iterable[Place]) -> None:
        if not self._taken:
            self._taken = {(place.topic, place.partition): place.offset for place in begins}
        for place in read:
            at = (place.topic, place.partition)
            # A lower offset means a restore. The first offset of a new partition is unknown.
            self.read += max(place.offset - self._taken.get(at, place.offset), 0)
            self._taken[at] = place.offset

    def _topics(self, admin: KafkaAdmin) -> tuple[str, ...]:
        if self._source.pattern is None:
            return self._source.topics
        wanted = re.compile(self._source.pattern)
        return tuple(name for name in admin.topics() if wanted.fullmatch(name))
