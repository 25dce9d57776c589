"""Where a pipeline begins in its topics, how far it has come, and when it has read them to the end.

Two groups of Kafka's keep its place. Under the source's own group are the offsets whose records all have
committed answers: what others see as progress and lag, and where a start without a checkpoint begins. Under
another, named like it with `-read` behind, Flink commits what it has read into its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from forebay.clock import Clock, SystemClock
from forebay.config.spec import PipelineSpec
from forebay.connectors.kafka.admin import (
    START_TIMEOUT_S,
    KafkaAdmin,
    KafkaRefused,
    Place,
    all_read,
    kafka_admin,
)
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import LaunchError
from forebay.flink.job import Checkpoints
from forebay.runtime.offset_settlement import OffsetSettlement, Sight
from forebay.runtime.snapshot import Snapshot

LOOK_S = 1.0
CLUSTER_SKEW_MS = 5000


def begin(spec: PipelineSpec, *, first: bool) -> tuple[Place, ...]:
    """Commit where a start of `spec` without a checkpoint begins; returns where its topics end now, see
    `ends`.

    The `first` start begins where the source says; a later one at the records that have no answer yet, also
    where the first began at the latest. Flink begins at committed offsets. Nothing is done where the source
    is none of Kafka. Raises `KafkaAway` where Kafka does not answer, `KafkaRefused` where it does not let us.
    """
    source = spec.source
    if not isinstance(source, KafkaSource):
        return ()
    group = source.group_of(spec.name)
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        topics = topic_names(source, admin)
        if source.start == "committed" or not first:
            places = _known_or_first(admin, group, topics)
        else:
            places = admin.offsets(topics, source.start)
        admin.commit(group, places)
        admin.commit(source.reading_group_of(spec.name), places)
        return admin.ends(topics)


def ends(spec: PipelineSpec) -> tuple[Place, ...]:
    """Where the topics of `spec` end now; nothing where its source is none of Kafka. Raises as `begin`."""
    source = spec.source
    if not isinstance(source, KafkaSource):
        return ()
    with kafka_admin(source.cluster(), START_TIMEOUT_S) as admin:
        return admin.ends(topic_names(source, admin))


def topic_names(source: KafkaSource, admin: KafkaAdmin) -> tuple[str, ...]:
    """The topics that `source` reads now."""
    if source.pattern is None:
        return source.topics
    return tuple(name for name in sorted(admin.topics()) if source.reads(name))


def _known_or_first(admin: KafkaAdmin, group: str, topics: Sequence[str]) -> tuple[Place, ...]:
    known = {(place.topic, place.partition): place for place in admin.committed(group)}
    first = admin.offsets(topics, "earliest")
    return tuple(known.get((place.topic, place.partition), place) for place in first)


class GroupOffsets:
    """Keeps the offsets of a running pipeline's group, and knows when a source with an end has reached it.

    To be called with each snapshot of the run; asks Flink and Kafka about once a second, and blocks for
    seconds where one does not answer. Does nothing where the source is none of Kafka.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ends: Sequence[Place],
        checkpoints: Callable[[], Checkpoints],
        settling: OffsetSettlement[tuple[Place, ...]],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._source = spec.source if isinstance(spec.source, KafkaSource) else None
        self._name = spec.name
        self._ends = ends
        self._checkpoints = checkpoints
        self._settling = settling
        self._clock = clock or SystemClock()
        self._looked_s = self._clock.monotonic_s()
        self._read_to_end_ms: int | None = None
        self._read: tuple[Place, ...] | None = None
        self._owed: tuple[Place, ...] | None = None
        # Opened once: a client starts threads, and logs all that it is configured with.
        self._client = ExitStack()
        self._admin: KafkaAdmin | None = None

    def __call__(self, now: Snapshot) -> bool:
        """Whether every record before the end has been read and answered; False for a source that goes on.

        Offsets of the reading group are in a completed checkpoint, so what lies before them is in state or
        answered. It is answered once nothing is awaited, or nothing that was read before those offsets were
        seen.
        """
        source = self._source
        if source is None:
            return False
        if self._clock.monotonic_s() - self._looked_s >= LOOK_S:
            try:
                self._look(source, now)
            except (LaunchError, KafkaRefused):
                # The job goes on by itself; the offsets that others see follow later.
                self.close()
                return False
            finally:
                self._looked_s = self._clock.monotonic_s()
            # What was accepted last is counted by the next snapshot.
            return False
        if self._read_to_end_ms is None:
            return False
        return not (now.in_flight or now.pending) or now.oldest_read_ms > self._read_to_end_ms

    def finished(self) -> None:
        """The pipeline has come to its end: what was read is answered. Raises `KafkaAway`."""
        if self._source is not None:
            admin = self._open(self._source)
            self._commit(admin, self._source, admin.committed(self._source.reading_group_of(self._name)))

    def close(self) -> None:
        """End the connection to Kafka; the next look makes another."""
        self._client.close()
        self._admin = None

    def _open(self, source: KafkaSource) -> KafkaAdmin:
        if self._admin is None:
            self._admin = self._client.enter_context(kafka_admin(source.cluster()))
        return self._admin

    def _look(self, source: KafkaSource, now: Snapshot) -> None:
        checkpoints = self._checkpoints()
        sight = Sight(
            monotonic_s=self._clock.monotonic_s(),
            wall_ms=self._clock.wall_ms(),
            restarts=checkpoints.restored,
            newest=checkpoints.newest,
            newest_done=checkpoints.newest_done,
            newest_clear=checkpoints.newest_clear,
            oldest_read_ms=now.oldest_read_ms,
        )
        cluster, reading = source.cluster(), source.reading_group_of(self._name)
        admin = self._open(source)
        read = admin.committed(reading)
        # While offsets move, there is more to read.
        unsure = source.until_latest and self._read_to_end_ms is None and read == self._read
        if unsure and all_read(cluster, read, self._ends, source.isolation):
            self._read_to_end_ms = self._clock.wall_ms()
        self._read = read
        self._owed = self._settling.look(sight, read) or self._owed
        if self._owed is not None:
            self._commit(admin, source, self._owed)
            self._owed = None

    def _commit(self, admin: KafkaAdmin, source: KafkaSource, places: tuple[Place, ...]) -> None:
        admin.commit(source.group_of(self._name), places)
