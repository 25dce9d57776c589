"""Ends the previous job's Kafka transactions, and checks that the running job's are committed.

If Flink cannot commit a transaction, it only increments a metric, so this module reads Kafka's own record.
Transactions are named after their job, so that an earlier job cannot abort a new one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product

from forebay.clients.s3.location import Location, location_of
from forebay.clock import Clock, SystemClock
from forebay.connectors.base import ASSIGNMENTS, DEAD_LETTERS, RESULTS
from forebay.connectors.kafka.admin import (
    CALL_TIMEOUT_S,
    START_TIMEOUT_S,
    KafkaAdmin,
    KafkaAway,
    KafkaRefused,
    Transaction,
    kafka_admin,
)
from forebay.connectors.kafka.clients import commit
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.settings import KafkaSink, transaction_prefix
from forebay.errors import PipelineFailed, ResultsLost, SettingError
from forebay.flink.checkpoints import KeptCheckpoints, job_of
from forebay.flink.job import Checkpoints
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import RunState, number_of, open_store

NAMES = {"sink": RESULTS, "dead_letters": DEAD_LETTERS, "assignments": ASSIGNMENTS}
ABORTED = frozenset(("PrepareAbort", "CompleteAbort", "PrepareEpochFence"))
SKIPPED = 10
LOOK_S = 1.0
MAX_SINCE = 200
OPEN = "Ongoing"
COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))

Key = tuple[int, int]
"""Subtask, and number of the checkpoint that should commit the transaction."""


class TopicCommits:
    """Decides which transactions of one topic are lost, one look after another.

    A transaction is lost if Kafka has aborted it when its checkpoint has completed, or if it was open and is
    now neither open nor committed. After a restore, those found after the restored checkpoint in the `first`
    look were given up.
    """

    def __init__(self, subtasks: int, restored: int) -> None:
        self._subtasks = subtasks
        self._judged = restored
        self._open: set[Key] = set()
        self._given_up: dict[Key, int | None] = {}

    def restored(self, number: int) -> None:
        self._open = {key for key in self._open if key[1] <= number}

    def wanted(self, newest: int) -> list[Key]:
        new = product(range(self._subtasks), range(self._judged + 1, newest + 2))
        return sorted({*new, *self._open})

    def look(self, found: Mapping[Key, Transaction], done: int, *, first: bool = False) -> list[Key]:
        if first:
            self._given_up |= {key: each.began_ms for key, each in found.items() if key[1] > done}
        lost = []
        for key in sorted(found.keys() | self._open):
            now = found.get(key, Transaction("Empty"))
            if now.began_ms is not None and self._given_up.get(key) == now.began_ms:
                continue
            if now.state == OPEN:
                self._open.add(key)
            elif now.state in COMMITTED:
                self._open.discard(key)
            elif key[1] <= done and (key in self._open or now.state in ABORTED):
                lost.append(key)
        self._judged = max(self._judged, done)
        return lost

    def safe(self, done: int) -> int:
        return min((number - 1 for _, number in self._open if number <= done), default=done)


@dataclass(frozen=True, slots=True)
class Topic:
    key: str
    sink: KafkaSink
    transactions: str


@dataclass(frozen=True, slots=True)
class Start:
    number: int
    subtasks: int
    checkpoint: Location | None = None


class CommitWatch:
    """Checks commits about twice a second, and keeps the newest checkpoint before which nothing is lost."""

    def __init__(
        self,
        topics: Iterable[Topic],
        start: Start,
        kept: KeptCheckpoints | None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._start = start
        self._kept = kept
        self._topics = [(topic, TopicCommits(start.subtasks, start.number)) for topic in topics]
        self._looked_s: float | None = None
        # Flink counts the restore that the job starts with.
        self._restored = 0 if start.number == 0 else 1
        self._newest = start.number
        # Opened once: a client starts threads, and logs all that it is configured with.
        self._open = ExitStack()
        self._admins: list[tuple[KafkaCluster, KafkaAdmin]] = []

    def __call__(self, checkpoints: Checkpoints) -> None:
        """Raise `ResultsLost` if a completed checkpoint's transaction is lost."""
        now_s = self._clock.monotonic_s()
        if not self._topics or (self._looked_s is not None and now_s - self._looked_s < LOOK_S):
            return
        self._looked_s = now_s
        if self._kept is not None:
            self._kept.keep()
        done = max(checkpoints.newest_done, self._start.number)
        self._newest = max(self._newest, checkpoints.newest)
        first = checkpoints.restored > self._restored
        try:
            for topic, commits in self._topics:
                if first:
                    commits.restored(done)
                # A checkpoint that was given up leaves its number out.
                ahead = self._newest + (SKIPPED if first else 0)
                found = self._ask(topic, commits.wanted(ahead))
                self._raise_lost(topic, commits.look(found, done, first=first))
        except (KafkaAway, KafkaRefused):
            self.close()
            return
        self._restored = max(self._restored, checkpoints.restored)
        if self._kept is not None:
            self._kept.drop_before(min(commits.safe(done) for _, commits in self._topics))

    def finished(self) -> None:
        """Check all transactions after the job's end. Raises `ResultsLost` and `PipelineFailed`."""
        self.close()
        try:
            for topic, commits in self._topics:
                # Checkpoints may have completed since the last look.
                later = self._ask_from(topic, self._newest + 2)
                found = self._ask(topic, commits.wanted(self._newest), START_TIMEOUT_S) | later
                self._raise_lost(topic, commits.look(found, self._newest + 1 + MAX_SINCE))
        except (KafkaAway, KafkaRefused) as error:
            raise PipelineFailed(
                f"the job has finished, but Kafka did not confirm the commit of its last results: {error}"
            ) from None

    def close(self) -> None:
        self._open.close()
        self._admins.clear()

    def _ask_from(self, topic: Topic, number: int) -> dict[Key, Transaction]:
        found: dict[Key, Transaction] = {}
        for begin in range(number, number + MAX_SINCE, SKIPPED):
            keys = product(range(self._start.subtasks), range(begin, begin + SKIPPED))
            more = self._ask(topic, keys, START_TIMEOUT_S)
            found |= more
            if not more:
                break
        return found

    def _ask(
        self, topic: Topic, keys: Iterable[Key], timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[Key, Transaction]:
        ids = {f"{topic.transactions}-{subtask}-{number}": (subtask, number) for subtask, number in keys}
        found = self._admin(topic, timeout_s).transactions(ids)
        return {ids[id]: transaction for id, transaction in found.items()}

    def _admin(self, topic: Topic, timeout_s: float) -> KafkaAdmin:
        cluster: KafkaCluster = topic.sink.cluster()
        for known, admin in self._admins:
            if known == cluster:
                return admin
        opened = self._open.enter_context(kafka_admin(cluster, timeout_s))
        self._admins.append((cluster, opened))
        return opened

    def _raise_lost(self, topic: Topic, lost: list[Key]) -> None:
        if not lost:
            return
        names = ", ".join(f"{topic.transactions}-{subtask}-{number}" for subtask, number in lost)
        oldest = min(number for _, number in lost)
        raise ResultsLost(
            f"{topic.key}.topic: results are missing in topic {topic.sink.topic!r}: Kafka has discarded "
            f"{names}, which checkpoint {oldest} should have committed: open for longer than "
            f"transaction_timeout_s ({topic.sink.transaction_timeout_s:g}), or ended by another client. "
            f"{self._fix(oldest - 1)}"
        )

    def _fix(self, number: int) -> str:
        kept = None if self._kept is None else self._kept.bring_back(number)
        older = self._start.checkpoint if kept is None else kept.path
        if older is None:
            return "Start over with --fresh to repeat them; all other results will be duplicated"
        return (
            f"Resume with --from-checkpoint {older} to repeat them; results committed after that checkpoint "
            f"will be duplicated"
        )


TRIES = 3
"""An earlier job that still runs may abort a transaction while it is being committed."""


@dataclass(frozen=True, slots=True, order=True)
class Name:
    key: str
    subtask: int
    number: int


Found = Mapping[Name, Transaction]


def held(found: Found, number: int) -> dict[Name, Transaction]:
    newest: dict[tuple[str, int], Name] = {}
    for name in sorted(found):
        if name.number <= number:
            newest[name.key, name.subtask] = name
    return {name: found[name] for name in newest.values()}


def lost(found: Found, number: int) -> list[Name]:
    return [name for name, each in held(found, number).items() if each.state in ABORTED]


def nothing_committed_after(found: Found, number: int) -> bool:
    return not any(each.state in COMMITTED for name, each in found.items() if name.number > number)


@dataclass(frozen=True, slots=True)
class Recovered:
    checkpoint: Location | None
    reason: str = ""


@dataclass(slots=True)
class _Topics:
    pipeline: str
    subtasks: int
    sinks: Mapping[str, KafkaSink]
    admins: dict[str, KafkaAdmin] = field(default_factory=dict)

    def id(self, job: str, name: Name) -> str:
        return f"{transaction_prefix(self.pipeline, NAMES[name.key], job)}-{name.subtask}-{name.number}"

    def find(self, job: str, first: int, last: int) -> dict[Name, Transaction]:
        found: dict[Name, Transaction] = {}
        for begin in range(max(1, first), last + 1 + MAX_SINCE, SKIPPED):
            more: dict[Name, Transaction] = {}
            for key, admin in self.admins.items():
                numbers = product(range(self.subtasks), range(begin, begin + SKIPPED))
                names = [Name(key, *each) for each in numbers]
                ids = {self.id(job, name): name for name in names}
                more |= {ids[id]: each for id, each in admin.transactions(ids).items()}
            found |= more
            if begin > last and not more:
                break
        return found

    def commit(self, job: str, names: Iterable[tuple[Name, Transaction]]) -> bool:
        return all(commit(self.sinks[name.key].cluster(), self.id(job, name), each) for name, each in names)

    def abort(self, job: str, found: Found) -> None:
        for key, admin in self.admins.items():
            begun = [name for name, each in found.items() if name.key == key and each.state == OPEN]
            if begun:
                admin.abort(self.id(job, name) for name in begun)


def end_transactions(
    spec: PipelineSpec, before: RunState, checkpoint: Location | None, *, chosen: bool = False
) -> Recovered:
    """End the transactions of the last job and of the job that wrote `checkpoint`. Blocks.

    If Kafka aborted the checkpoint's, the newest checkpoint without later commits is resumed instead, unless
    `checkpoint` was `chosen` by hand. Raises `SettingError` if there is none, `KafkaAway` and `KafkaRefused`.
    """
    sinks = {key: sink for key, sink in spec.topics().items() if sink.guarantee == "exactly-once"}
    if not sinks:
        return Recovered(checkpoint)
    topics = _Topics(spec.name, max(spec.parallelism, before.parallelism or 1), sinks)
    with ExitStack() as open_:
        for key, sink in sinks.items():
            topics.admins[key] = open_.enter_context(kafka_admin(sink.cluster(), START_TIMEOUT_S))
        recovered = Recovered(checkpoint)
        if checkpoint is not None:
            recovered = _end_resumed(spec, topics, checkpoint, chosen=chosen)
        if before.job is not None and (checkpoint is None or job_of(checkpoint) != before.job):
            # Its numbers continue from the checkpoint that it was started from.
            restored = 0 if checkpoint is None else number_of(checkpoint)
            last = max(restored, 0 if before.completed is None else before.completed.number)
            topics.abort(before.job, topics.find(before.job, max(restored + 1, last - SKIPPED), last))
    return recovered


def _end_resumed(spec: PipelineSpec, topics: _Topics, checkpoint: Location, *, chosen: bool) -> Recovered:
    job, number = job_of(checkpoint), number_of(checkpoint)
    others = open_store(location_of(spec.checkpoint.dir)).checkpoints(job)
    older = [(each.number, each.path) for each in others if each.number < number]
    for _ in range(TRIES):
        found = topics.find(job, min([number, *(each for each, _ in older)]) - SKIPPED, number)
        recovered, resumed = Recovered(checkpoint), number
        if not chosen:
            recovered, resumed = _resumable(spec, topics, job, found, [(number, checkpoint), *older])
            due = [item for item in found.items() if item[0].number <= resumed and item[1].state == OPEN]
            if not topics.commit(job, due):
                continue
        topics.abort(job, {name: each for name, each in found.items() if name.number > resumed})
        return recovered
    raise SettingError(
        f"checkpoint {checkpoint}: another run of pipeline {spec.name!r} ends its transactions in Kafka; "
        f"stop that run, and start again"
    )


def _resumable(
    spec: PipelineSpec, topics: _Topics, job: str, found: Found, checkpoints: Sequence[tuple[int, Location]]
) -> tuple[Recovered, int]:
    (number, checkpoint), *older = checkpoints
    missing = lost(found, number)
    if not missing:
        return Recovered(checkpoint), number
    names = ", ".join(topics.id(job, name) for name in missing)
    # Results that went to a file with this checkpoint may be visible already.
    if len(topics.sinks) == len(spec.sinks()):
        for earlier, path in older:
            if not lost(found, earlier) and nothing_committed_after(found, earlier):
                reason = f"Kafka has aborted {names} with results of checkpoint {number}"
                return Recovered(path, f"{reason}, which will be repeated"), earlier
    again = f"Resume with --from-checkpoint {older[0][1]} to repeat them, or" if older else "Resume"
    raise SettingError(
        f"{missing[0].key}.topic: Kafka has aborted {names} with results of checkpoint {number}: open for "
        f"longer than transaction_timeout_s ({topics.sinks[missing[0].key].transaction_timeout_s:g}), or "
        f"ended by another run. {again} with --from-checkpoint {checkpoint} to continue without them"
    )
