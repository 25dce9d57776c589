"""A submitted job, watched until it ends: what is told of it, when it is drained or cancelled, and how much
waits for it, which is counted beside it: what does not answer never holds the run up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from forebay.autoscale.topic_queue import TopicBacklog
from forebay.clock import Clock, SystemClock
from forebay.config.spec import PipelineSpec
from forebay.connectors.feeds.feed import FeedRefused
from forebay.connectors.kafka.admin import KafkaRefused, Place, kafka_admin
from forebay.connectors.kafka.gaps import LOST_POSITION
from forebay.connectors.kafka.lag import LagProbe, is_place
from forebay.connectors.kafka.registry import RegistryRefused
from forebay.connectors.kafka.settings import KafkaSource
from forebay.errors import LaunchError, PipelineFailed, TooLargeForSink
from forebay.flink.job import FAILED_COMMITS, LIMIT_REACHED, REPLACED_FILES, Checkpoints, RunningJob, end_job
from forebay.flink.metrics import FAILED, KV_COUNTERS, NOTHING_READ_MS, TOO_LARGE
from forebay.flink.rest import RestSilent
from forebay.runtime.reports import Look, Signs
from forebay.runtime.snapshot import KvTransfers, Snapshot, Spent, SpentInAll, estimate
from forebay.s3.location import Location

log = logging.getLogger("forebay")

POLL_S = 0.5
STILL_LOOKS, SETTLED_LOOKS = 10, 15
RESTING_ROUNDS, SETTLED_ROUNDS = 3, 9
CANCEL_S = 60.0
REFUSED = tuple(f"{error.__name__}: " for error in (FeedRefused, RegistryRefused))
"""How failures begin that no restart will mend."""
BROKEN = (
    "NoResourceAvailableException",
    "OutOfMemoryError",
    "TimeoutException: The heartbeat of TaskManager",
    *LOST_POSITION,
)
"""What causes hold of which a new Flink mends, and no restart in the old one."""


class JobLost(PipelineFailed):
    """What ran the job is gone or has broken: started anew, it may succeed."""


class Cancelled(BaseException):
    """Whoever supervises the attempt wants it to end."""


@dataclass(slots=True)
class StopRequests:
    """What whoever supervises an attempt wants of it; set by one thread and read by another.

    `drain`: the job is to complete what it has read, commit it and end. `cancel`: it is to end now.
    """

    drain: bool = False
    cancel: bool = False


def watch_until_end(
    job: RunningJob,
    tell: Callable[[Look], None],
    wishes: StopRequests,
    savepoints: Location,
    *,
    one_each: bool,
    waiting: LastCount,
    answered: Callable[[Snapshot], bool],
    committed: Callable[[Checkpoints], None],
    awaits: Callable[[], bool] = lambda: False,
    at_rest: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Look at `job` every half second, or as `Rests` says; blocks until it has ended, and returns the last
    look.

    Each look goes to `tell`, with what `waiting` counts in the source's topics. `one_each`: each event gives
    one result or dead letter. The job is drained, its savepoint written under `savepoints`, once `answered`
    says so, the source has read as much as it shall, or it is wished. `committed` is told of the checkpoints,
    and raises where what they commit is lost. While `awaits`, each half second brings a look; `at_rest` is
    called once in each time in which nothing happens. Whatever is raised here ends the job first. Raises
    `PipelineFailed` where the job failed, or where no restart would mend it, and `JobLost` where a new Flink
    would; `Cancelled` when that is wished.
    """
    started_s = time.monotonic()
    last, signs = Snapshot(0.0, "CREATED"), Signs()
    silent = False
    failed_commits, rests, limit = FailedCommits(), Rests(), ReachedLimit()
    try:
        # To ask Java itself has no time-out: not while Flink's REST service, which is in it, is silent.
        while silent or (cause := job.ended()) is None:
            time.sleep(POLL_S)
            if wishes.cancel:
                raise Cancelled
            last = replace(last, elapsed_s=time.monotonic() - started_s)
            silent = False
            if rests.passes() and not wishes.drain:
                tell(Look(last, signs))
                continue
            try:
                before = last
                last, signs = _look(job, last, failed_commits, limit, one_each=one_each, committed=committed)
                last = replace(last, backlog=waiting.backlog(last))
                rests.looked(before, last, awaits=awaits())
                if rests.settled:
                    at_rest()
                if wishes.drain or limit.answered or answered(last):
                    job.drain(savepoints)
            except LaunchError as error:
                # One that refuses connections may be ending with its job; the next round will tell.
                silent = isinstance(error, RestSilent)
                signs = replace(signs, answers=False)
            tell(Look(last, signs))
    except BaseException:
        # What runs on would go on to write, and on a cluster nothing else would end it.
        with suppress(LaunchError):
            end_job(job.rest, job.id, CANCEL_S)
        raise
    if cause:
        failed = JobLost if any(words in cause for words in BROKEN) else PipelineFailed
        raise failed(f"the Flink job failed: {cause}")
    # A checkpoint that was under way failed with the end of its tasks, behind which the last one lies.
    last = replace(last, checkpoint_failure="")
    return replace(last, state="FINISHED", elapsed_s=time.monotonic() - started_s, oldest_read_ms=0)


class Rests:
    """Which rounds pass without a look at the job: three of four, once it has run for ten looks with nothing
    in flight, nothing that waits and no count changed, and nine of ten after fifteen such looks. Each look is
    half a dozen answers of Flink's, which are most of what an idle run takes of the processor."""

    def __init__(self) -> None:
        self._still = self._left = 0

    def looked(self, before: Snapshot, now: Snapshot, *, awaits: bool = False) -> None:
        """A look was made; `awaits`: somebody needs the next ones."""
        same = replace(now, elapsed_s=before.elapsed_s, backlog=before.backlog) == before
        waits = awaits or _awaits_answers(now) or (now.backlog is not None and now.backlog.records)
        self._still = self._still + 1 if same and now.state == "RUNNING" and not waits else 0
        settled = self._still >= SETTLED_LOOKS
        self._left = SETTLED_ROUNDS if settled else RESTING_ROUNDS if self._still >= STILL_LOOKS else 0

    @property
    def settled(self) -> bool:
        """Whether the look before was the one after which it may be said that nothing happens."""
        return self._still == SETTLED_LOOKS

    def passes(self) -> bool:
        """Whether the round that begins makes no look."""
        self._left -= 1
        return self._left >= 0


class ReachedLimit:
    """Decides when a job ends whose feed has reached its limit: a feed has no end of its own.

    `answered` is true once two looks in a row found the limit reached and no answer awaited: what the first
    one counted may be older than the last record. While a job is drained, no checkpoint completes but the
    savepoint behind its last answer, so a drain that began earlier would hold all results back until then.
    """

    def __init__(self) -> None:
        self._found = 0

    def looked(self, now: Snapshot, *, reached: bool) -> None:
        """Take a look into account, with what it counted."""
        self._found = self._found + 1 if reached and not _awaits_answers(now) else 0

    @property
    def answered(self) -> bool:
        return self._found >= 2


def _awaits_answers(now: Snapshot) -> bool:
    return bool(now.in_flight or now.pending or 0 < now.oldest_read_ms < NOTHING_READ_MS)


class FailedCommits:
    """Counts what a job's sinks could not commit.

    A restore commits once more what its checkpoint holds, which was committed before as a rule: Kafka then
    takes whoever does so for an old producer, and Flink counts a failure. So what fails between a restore and
    the next checkpoint does not count. (What a resumed checkpoint holds is looked at before the start.)
    """

    def __init__(self) -> None:
        self._sum = self._last = 0
        self._restored = 0
        self._done_before = 0

    def __call__(self, count: int, checkpoints: Checkpoints) -> int:
        """How many so far, with Flink's counter, which begins anew with each restart, at `count`."""
        if checkpoints.restored != self._restored:
            self._restored, self._done_before, self._last = checkpoints.restored, checkpoints.newest_done, 0
        if self._restored == 0 or checkpoints.newest_done > self._done_before:
            self._sum += max(0, count - self._last)
        self._last = count
        return self._sum


def _look(
    job: RunningJob,
    before: Snapshot,
    failed_commits: FailedCommits,
    limit: ReachedLimit,
    *,
    one_each: bool,
    committed: Callable[[Checkpoints], None],
) -> tuple[Snapshot, Signs]:
    state, restarts = job.state(), job.restarts()
    now = replace(before, state=state, restarts=restarts)
    if restarts != before.restarts:
        now = replace(now, failure=job.failure())
        if any(words in now.failure for words in LOST_POSITION):
            # A restart begins at the same offset. A new attempt compares it with the topic first.
            raise JobLost(f"Kafka no longer has the next record: {now.failure}")
        if before.accepted == before.restored and now.failure.startswith(REFUSED):
            # The file is wrong, and no restart will mend it.
            raise PipelineFailed(now.failure)
    checkpoints = job.checkpoints()
    committed(checkpoints)
    now = replace(now, checkpoint_failure=checkpoints.failure)
    counts = job.counts()
    signs = Signs(
        task_managers=job.task_managers(),
        looked_ms=int(counts.get("looked_ms", 0)),
        held_back_ms=int(counts.get("held_back_ms", 0)),
        checkpoint_ms=checkpoints.done[-1][0] if checkpoints.done else 0,
    )
    if not counts:
        return now, signs
    now = replace(now, failed_commits=failed_commits(int(counts.get(FAILED_COMMITS, 0)), checkpoints))
    now = counted(now, counts, one_each=one_each)
    limit.looked(now, reached=counts.get(LIMIT_REACHED, 0) > 0)
    return now, signs


def counted(now: Snapshot, counts: Mapping[str, float], *, one_each: bool) -> Snapshot:
    """`now` with the `RunningJob.counts` of the moment; as it is where there are none yet."""
    if not counts:
        return now

    def whole(name: str) -> int:
        return int(counts.get(name, 0))

    came_in, refused = whole("accepted") + whole("restored"), whole(TOO_LARGE)
    # What Flink tells in one look is not of one moment.
    left = came_in - whole("results") - whole("dead_letters") if one_each else came_in
    return replace(
        now,
        accepted=came_in,
        restored=whole("restored"),
        results=max(0, whole("results") - refused),
        dead_letters=whole("dead_letters") + refused,
        replaced_files=whole(REPLACED_FILES),
        in_flight=max(0, min(whole("in_flight"), left)),
        pending=whole("pending"),
        oldest_read_ms=whole("oldest_read_ms"),
        retries=whole("retries"),
        restored_calls=whole("restored_calls"),
        prompt_tokens=whole("prompt_tokens"),
        completion_tokens=whole("completion_tokens"),
        event_p50_s=counts.get("event_p50_us", 0) / 1e6,
        event_p99_s=counts.get("event_p99_us", 0) / 1e6,
        kv_transfers=_kv_transfers(counts),
        # Flink's counters start at 0 after each restart.
        suspect_times=max(now.suspect_times, whole("suspect_times")),
        cut_answers=whole("cut_answers"),
        failed=_failed(counts) | ({TooLargeForSink.cause: refused} if refused else {}),
    )


def _failed(counts: Mapping[str, float]) -> dict[str, int]:
    """Failures of the operator, by cause."""
    return {
        name.removeprefix(FAILED): int(count)
        for name, count in sorted(counts.items())
        if name.startswith(FAILED) and count
    }


def _kv_transfers(counts: Mapping[str, float]) -> KvTransfers | None:
    found = {handover: int(counts.get(name, 0)) for handover, name in KV_COUNTERS.items()}
    return KvTransfers(**found) if any(found.values()) else None


COUNT_EVERY_S = 3.0
COUNT_END_S = 1.0


def answered_records(now: Snapshot) -> int:
    """The records that are through, where each gives one result or dead letter."""
    return now.results + now.dead_letters


def taken_records(now: Snapshot) -> int:
    """The same where a result stands for many of them. None before the first answer: until then, those in
    windows have cost nothing."""
    return max(now.accepted - now.in_flight - now.pending, 0) if now.prompt_tokens else 0


class LastCount:
    """The newest count of what waits, written by one thread and read by another. `done` says how many records
    have cost what a snapshot says of tokens; 0 where that is not known. None: an application finds by itself
    what to ask about, so that a snapshot counts questions, and records are those that the source has read."""

    def __init__(self, clock: Clock, done: Callable[[Snapshot], int] | None = answered_records) -> None:
        self._clock = clock
        self._done = done
        self._counted: tuple[int, int, float] | None = None
        self._spent = Spent()
        self._in_all = SpentInAll()

    def set(self, records: int, read: int = 0) -> None:
        """So many wait; so many were read, as `LagProbe.read`."""
        self._counted = (records, read, self._clock.monotonic_s())

    def backlog(self, now: Snapshot) -> TopicBacklog | None:
        """What waits, with the tokens that it will take by what `now` says of those before; None before the
        first count. After a restart, until one more record is through, the mean from before it counts."""
        if self._done is not None and (done := self._done(now)):
            self._spent = Spent(done, now.prompt_tokens, now.completion_tokens)
        if self._counted is None:
            return None
        records, read, at_s = self._counted
        if self._done is None:
            self._spent = self._in_all.add(read, now.prompt_tokens, now.completion_tokens)
        return estimate(records, self._spent, self._clock.monotonic_s() - at_s)


@contextmanager
def lag_watched(
    spec: PipelineSpec,
    job: RunningJob,
    *,
    restored: bool,
    before: Sequence[Place] = (),
    clock: Clock | None = None,
) -> Iterator[LastCount]:
    """Count what waits for `job` every three seconds while the block runs; nothing for another source.
    `restored` and `before` as `LagProbe` has them.

    Counting is done on a thread of its own, which asks Kafka and Flink and waits for neither longer than
    their clients' time-outs; a count that fails leaves the last one, which grows old.
    """
    application = spec.application
    done: Callable[[Snapshot], int] | None = answered_records
    if application is not None:
        done = None if application.own_clock else taken_records
    last, ended = LastCount(clock or SystemClock(), done), threading.Event()
    if not isinstance(spec.source, KafkaSource):
        yield last
        return
    source = spec.source.topics_of(spec)
    probe = LagProbe(source, lambda: job.highest(is_place), restored=restored, before=before)

    def count() -> None:
        while not ended.is_set():
            try:
                with kafka_admin(source.cluster) as admin:
                    while not ended.is_set():
                        waits = probe.count(admin)
                        last.set(waits, probe.read)
                        ended.wait(COUNT_EVERY_S)
            except (LaunchError, KafkaRefused):
                ended.wait(COUNT_EVERY_S)
            except Exception:
                # A thread that ended would leave the last count for ever.
                log.exception("what waits was not counted; counting again")
                ended.wait(COUNT_EVERY_S)

    thread = threading.Thread(target=count, name="lag", daemon=True)
    thread.start()
    try:
        yield last
    finally:
        ended.set()
        thread.join(COUNT_END_S)
