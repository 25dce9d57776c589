"""A pipeline's progress in its topics: committed offsets, and whether bounded topics are at their end.

In the source's own consumer group, all records before the offsets have committed answers. In the group with
the suffix `-read`, Flink commits what its checkpoints have read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.connectors.kafka.admin import KafkaAdmin, KafkaRefused, Place, kafka_admin
from forebay.connectors.kafka.clients import all_read
from forebay.connectors.kafka.gaps import changed
from forebay.connectors.kafka.lag import furthest
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import LaunchError
from forebay.flink.job import Checkpoints
from forebay.pipeline.kafka.start import places_read, topic_names
from forebay.pipeline.messages import JobLost
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.spec import PipelineSpec

Offsets = TypeVar("Offsets")


@dataclass(frozen=True, slots=True)
class OffsetObservation:
    monotonic_s: float
    wall_ms: int
    restarts: int
    newest: int
    newest_done: int
    newest_clear: int
    oldest_read_ms: int


Steps = Generator[None, OffsetObservation, OffsetObservation]


class OffsetSettlement(Generic[Offsets]):
    """Finds offsets before which all records have committed answers, so they can be published.

    After a look finds offsets that Flink has committed, it waits for three steps. A restart repeats them:

    1. A checkpoint triggered later completes: every record before the offsets is held by an operator,
      answered, or in flight to an operator that holds older ones. (With `many_readers`, nothing may be in
      flight.) Metrics `metrics_s` later include what the operators hold.
    2. By such metrics, nothing read before the look is pending. Clocks of two machines may differ by
      `skew_ms`.
    3. A checkpoint triggered after that completes, and one more, before which the sinks have committed.
    """

    def __init__(self, metrics_s: float, skew_ms: int = 0, *, many_readers: bool = False) -> None:
        self._metrics_s = metrics_s
        self._skew_ms = skew_ms
        self._many_readers = many_readers
        self._steps: Steps | None = None
        self._restarts = 0
        self._offsets: Offsets | None = None
        self._settled: Offsets | None = None

    @property
    def settles(self) -> bool:
        return self._steps is not None

    def look(self, sight: OffsetObservation, read: Offsets) -> Offsets | None:
        """Return offsets that have just settled, else None. `read`: offsets that Flink has committed."""
        if self._steps is None or sight.restarts != self._restarts:
            self._steps, self._restarts = None, sight.restarts
            self._offsets = read
            if self._offsets != self._settled:
                self._steps = self._settles(sight.monotonic_s, sight.wall_ms)
                next(self._steps)
            return None
        try:
            self._steps.send(sight)
            return None
        except StopIteration:
            self._steps, self._settled = None, self._offsets
            return self._settled

    def _settles(self, found_s: float, read_ms: int) -> Steps:
        # Checkpoint counts may be as old as the metrics: an earlier checkpoint must not count as a later one.
        before = yield from _until(lambda now: now.monotonic_s >= found_s + self._metrics_s)
        passed = yield from _until(lambda now: self._passed(now) > before.newest)
        known_s = passed.monotonic_s + self._metrics_s
        # Not lowered if the wall clock is set back: the oldest time may then be a newer event's, and hide one
        # that was read before. So offsets settle later, by that step at most.
        first_ms = read_ms + self._skew_ms
        answered = yield from _until(lambda now: now.monotonic_s >= known_s and now.oldest_read_ms > first_ms)
        answered_s = answered.monotonic_s + self._metrics_s
        before = yield from _until(lambda now: now.monotonic_s >= answered_s)
        held = yield from _until(lambda now: now.newest_done > before.newest)
        return (yield from _until(lambda now: now.newest_done > held.newest_done))

    def _passed(self, now: OffsetObservation) -> int:
        return now.newest_clear if self._many_readers else now.newest_done


def _until(holds: Callable[[OffsetObservation], bool]) -> Steps:
    while not holds(now := (yield)):
        pass
    return now


LOOK_S = 1.0
COMPARE_EVERY_S = 30.0
METRICS_S = 3.0
CLUSTER_METRICS_S = 30.0
CLUSTER_SKEW_MS = 5000


def settlement(spec: PipelineSpec, *, cluster: bool) -> OffsetSettlement[tuple[Place, ...]]:
    many = spec.parallelism > 1 and spec.event_time is None
    if not cluster:
        return OffsetSettlement(METRICS_S, many_readers=many)
    return OffsetSettlement(CLUSTER_METRICS_S, CLUSTER_SKEW_MS, many_readers=many)


class GroupOffsets:
    """Commits the group's offsets of a running pipeline, and detects the end of a bounded source.

    Call it with each snapshot. It queries Flink and Kafka about once a second, and may block for seconds.
    `ids` are the topics' ids at the start; `seen` receives new topics.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ends: Sequence[Place],
        checkpoints: Callable[[], Checkpoints],
        settling: OffsetSettlement[tuple[Place, ...]],
        *,
        ids: Mapping[str, str] | None = None,
        seen: Callable[[Mapping[str, str]], None] = lambda ids: None,
        clock: Clock | None = None,
    ) -> None:
        self._ids = None if ids is None else dict(ids)
        self._seen = seen
        self._source = spec.source if isinstance(spec.source, KafkaSource) else None
        self._name = spec.name
        self._ends = ends
        self._checkpoints = checkpoints
        self._settling = settling
        self._clock = clock or SystemClock()
        self._looked_s = self._clock.monotonic_s()
        self._read_to_end_ms: int | None = None
        self._read_to_end_s = 0.0
        self._read: tuple[Place, ...] | None = None
        self._owed: tuple[Place, ...] | None = None
        self._settled: tuple[Place, ...] | None = None
        self._compare_s = self._looked_s
        self._through: tuple[Place, ...] = ()
        # Opened once: a client starts threads, and logs all that it is configured with.
        self._client = ExitStack()
        self._admin: KafkaAdmin | None = None

    def __call__(self, now: Snapshot) -> bool:
        """Whether every record before the end has been answered; False for an unbounded source.

        Records before the reading group's offsets are in state or answered. So all are answered once nothing
        read before those offsets is pending. Raises `JobLost` if a topic was recreated.
        """
        source = self._source
        if source is None:
            return False
        if self._clock.monotonic_s() - self._looked_s >= LOOK_S:
            try:
                self._look(source, now)
            except (LaunchError, KafkaRefused):
                # The job continues without this; the visible offsets follow later.
                self.close()
                return False
            finally:
                self._looked_s = self._clock.monotonic_s()
            # The next snapshot counts what was accepted last.
            return False
        if self._read_to_end_ms is None:
            return False
        if now.oldest_read_ms == 0 and self._clock.monotonic_s() - self._read_to_end_s < METRICS_S:
            # The operator's counts have not arrived: ending now would report a run without input.
            return False
        if not (now.in_flight or now.pending):
            return True
        # If the wall clock was set back, newer events have lower times. An event that they hide is answered
        # while the job is drained.
        passed_ms = round((self._clock.monotonic_s() - self._read_to_end_s) * 1000)
        step_ms = self._clock.wall_ms() - self._read_to_end_ms - passed_ms
        return now.oldest_read_ms > self._read_to_end_ms + min(step_ms, 0)

    @property
    def awaits(self) -> bool:
        """Whether it must be called every half second: a bounded source is read, or offsets settle."""
        return self._source is not None and (self._source.until_latest or self._settling.settles)

    def finished(self) -> None:
        """Publish the final offsets, as all records are answered. Raises `KafkaAway`."""
        if self._source is not None:
            admin = self._open(self._source)
            read = places_read(admin, self._source, self._name)
            self._commit(admin, self._source, furthest(read, self._through))

    def close(self) -> None:
        self._client.close()
        self._admin = None

    def _open(self, source: KafkaSource) -> KafkaAdmin:
        if self._admin is None:
            self._admin = self._client.enter_context(kafka_admin(source.cluster()))
        return self._admin

    def _look(self, source: KafkaSource, now: Snapshot) -> None:
        checkpoints = self._checkpoints()
        sight = OffsetObservation(
            self._clock.monotonic_s(),
            self._clock.wall_ms(),
            checkpoints.restored,
            checkpoints.newest,
            checkpoints.newest_done,
            checkpoints.newest_clear,
            now.oldest_read_ms,
        )
        cluster = source.cluster()
        admin = self._open(source)
        self._check_ids(admin, source)
        read = places_read(admin, source, self._name)
        # While offsets move, there is more to read.
        unsure = source.until_latest and self._read_to_end_ms is None and read == self._read
        if unsure and all_read(cluster, read, self._ends, source.isolation):
            self._read_to_end_ms, self._read_to_end_s = self._clock.wall_ms(), self._clock.monotonic_s()
        self._read = read
        self._owed = self._settling.look(sight, read) or self._owed
        if self._owed is not None:
            self._commit(admin, source, self._owed)
            self._settled, self._owed = self._owed, None
        if read == self._settled and not (now.in_flight or now.pending):
            self._pass_markers(admin, source, read)

    def _pass_markers(self, admin: KafkaAdmin, source: KafkaSource, read: tuple[Place, ...]) -> None:
        partitions = {(place.topic, place.partition) for place in read}
        ends = admin.ends({place.topic for place in read})
        ends = tuple(end for end in ends if (end.topic, end.partition) in partitions)
        passed = furthest(read, self._through)
        now_s = self._clock.monotonic_s()
        if now_s < self._compare_s or furthest(passed, ends) == passed:
            return
        # This creates a client, and waits for an open transaction.
        self._compare_s = now_s + COMPARE_EVERY_S
        if all_read(source.cluster(), read, ends, source.isolation):
            self._commit(admin, source, ends)
            self._through = ends

    def _check_ids(self, admin: KafkaAdmin, source: KafkaSource) -> None:
        if self._ids is None:
            return
        now = admin.topic_ids(topic_names(source, admin))
        again = [topic for topic in sorted(now) if changed(topic, self._ids, now)]
        if again:
            raise JobLost(
                f"Kafka topic {', '.join(map(repr, again))} was deleted and created again; records that were "
                "read in the last seconds may be the new topic's, and are read again"
            )
        new = {topic: id for topic, id in now.items() if topic not in self._ids}
        if new:
            self._ids |= new
            self._seen(new)

    def _commit(self, admin: KafkaAdmin, source: KafkaSource, places: tuple[Place, ...]) -> None:
        admin.commit(source.group_of(self._name), places)
