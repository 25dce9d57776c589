"""Watches how much waits for a running pipeline, beside it: what does not answer never holds the run up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.backlog import Backlog, Spent, estimate
from forebay.clock import Clock, SystemClock
from forebay.config.spec import PipelineSpec
from forebay.connectors.kafka.admin import KafkaRefused, kafka_admin
from forebay.connectors.kafka.lag import LagProbe, is_place
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import LaunchError
from forebay.flink.job import RunningJob
from forebay.runtime.snapshot import Snapshot

EVERY_S = 3.0
END_S = 1.0


class LastCount:
    """The newest count of what waits, written by one thread and read by another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted: tuple[int, float] | None = None
        self._spent = Spent()

    def set(self, records: int) -> None:
        self._counted = (records, self._clock.monotonic_s())

    def backlog(self, now: Snapshot) -> Backlog | None:
        """What waits, with the tokens that it will take by what `now` says of those before; None before the
        first count. After a restart, until one more record is through, the mean from before it counts."""
        done = now.results + now.dead_letters
        if done:
            self._spent = Spent(done, now.prompt_tokens, now.completion_tokens)
        if self._counted is None:
            return None
        records, at_s = self._counted
        return estimate(records, self._spent, self._clock.monotonic_s() - at_s)


@contextmanager
def lag_watched(
    spec: PipelineSpec, job: RunningJob, *, restored: bool, clock: Clock | None = None
) -> Iterator[LastCount]:
    """Count what waits for `job` every three seconds while the block runs; nothing for another source.

    Counting is done on a thread of its own, which asks Kafka and Flink and waits for neither longer than
    their clients' time-outs; a count that fails leaves the last one, which grows old.
    """
    last, ended = LastCount(clock or SystemClock()), threading.Event()
    if not isinstance(spec.source, KafkaSource):
        yield last
        return
    source = spec.source.topics_of(spec)
    probe = LagProbe(source, lambda: job.highest(is_place), restored=restored)

    def count() -> None:
        while not ended.is_set():
            try:
                with kafka_admin(source.cluster) as admin:
                    while not ended.is_set():
                        last.set(probe.count(admin))
                        ended.wait(EVERY_S)
            except (LaunchError, KafkaRefused):
                ended.wait(EVERY_S)

    thread = threading.Thread(target=count, name="lag", daemon=True)
    thread.start()
    try:
        yield last
    finally:
        ended.set()
        thread.join(END_S)
