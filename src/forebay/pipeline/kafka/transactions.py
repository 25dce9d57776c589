"""Checks that Kafka commits the transactions of a job's checkpoints, while it runs and after its end.

If Flink cannot commit a transaction, it increments a metric and continues; nobody reads it after the last
checkpoint, and it also counts a transaction that a restore commits again. Only Kafka's own record is
reliable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from forebay.clients.s3.location import Location
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
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.connectors.kafka.settings import KafkaSink
from forebay.errors import PipelineFailed, ResultsLost
from forebay.flink.job import Checkpoints
from forebay.pipeline.state_store import Kept

NAMES = {"sink": RESULTS, "dead_letters": DEAD_LETTERS, "assignments": ASSIGNMENTS}
ABORTED = frozenset(("PrepareAbort", "CompleteAbort", "PrepareEpochFence"))
"""Kafka's states of a transaction whose records are discarded."""
SKIPPED = 10
"""Consecutive numbers that may have no transaction, because their checkpoints failed."""
LOOK_S = 1.0
MAX_SINCE = 200
"""Checkpoints that may complete between the last look and the end of a job."""
OPEN = "Ongoing"
COMMITTED = frozenset(("PrepareCommit", "CompleteCommit"))

Key = tuple[int, int]
"""Subtask, and number of the checkpoint at which the transaction is due."""


class TopicCommits:
    """Decides which transactions of one topic are lost, one look after another.

    A transaction is due once the checkpoint with its number has completed. It is lost if Kafka has aborted it
    by then, or if it was open and is now neither open nor committed. Transactions found after the restored
    checkpoint in the `first` look after a restore were given up; Flink reuses their ids.
    """

    def __init__(self, subtasks: int, restored: int) -> None:
        self._subtasks = subtasks
        self._judged = restored
        self._open: set[Key] = set()
        self._given_up: dict[Key, int | None] = {}

    def restored(self, number: int) -> None:
        """Record a restore from checkpoint `number`, which takes back later transactions."""
        self._open = {key for key in self._open if key[1] <= number}

    def wanted(self, newest: int) -> list[Key]:
        """The transactions to query if `newest` is the last checkpoint triggered."""
        numbers = range(self._judged + 1, newest + 2)
        new = {(subtask, number) for subtask in range(self._subtasks) for number in numbers}
        return sorted(new | self._open)

    def look(self, found: Mapping[Key, Transaction], done: int, *, first: bool = False) -> list[Key]:
        """Return the lost transactions if `done` is the last completed checkpoint."""
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
        """Return the newest checkpoint up to which everything is committed."""
        return min((number - 1 for _, number in self._open if number <= done), default=done)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic written exactly once, under `key` of the pipeline file; `transactions` is the prefix of its
    ids.
    """

    key: str
    sink: KafkaSink
    transactions: str


@dataclass(frozen=True, slots=True)
class Start:
    """`number` is that of `checkpoint`, 0 for the beginning."""

    number: int
    subtasks: int
    checkpoint: Location | None = None


class CommitWatch:
    """Compares the transactions of a running job with its checkpoints.

    Call it with them about twice a second; it queries Kafka at most once a second. Keeps the newest
    checkpoint before which nothing is lost, also after the job's end.
    """

    def __init__(
        self, topics: Iterable[Topic], start: Start, kept: Kept, *, clock: Clock | None = None
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
        """Raise `ResultsLost` if a completed checkpoint's transaction is lost. If Kafka does not answer, a
        later call retries.
        """
        now_s = self._clock.monotonic_s()
        if not self._topics or (self._looked_s is not None and now_s - self._looked_s < LOOK_S):
            return
        self._looked_s = now_s
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
        self._kept.drop_before(min(commits.safe(done) for _, commits in self._topics))

    def finished(self) -> None:
        """Check all transactions after the job's end. Raises `ResultsLost`; `PipelineFailed` if Kafka does
        not answer.
        """
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

    def _numbers(self, begin: int, end: int) -> list[Key]:
        return [(subtask, number) for subtask in range(self._start.subtasks) for number in range(begin, end)]

    def _ask_from(self, topic: Topic, number: int) -> dict[Key, Transaction]:
        """Return transactions from `number` on, until `SKIPPED` consecutive numbers have none."""
        found: dict[Key, Transaction] = {}
        for begin in range(number, number + MAX_SINCE, SKIPPED):
            more = self._ask(topic, self._numbers(begin, begin + SKIPPED), START_TIMEOUT_S)
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
        kept = self._kept.bring_back(number)
        older = self._start.checkpoint if kept is None else kept.path
        if older is None:
            return "Start over with --fresh to repeat them; all other results will be duplicated"
        return (
            f"Resume with --from-checkpoint {older} to repeat them; results committed after that checkpoint "
            f"will be duplicated"
        )
