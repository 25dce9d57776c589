"""Transactions that Kafka aborts, look by look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.harness.operators import complete_checkpoint

from forebay.connectors.kafka.admin import KafkaAway, Transaction
from forebay.connectors.kafka.settings import KafkaSink
from forebay.errors import PipelineFailed, ResultsLost
from forebay.flink.checkpoints import KeptCheckpoints
from forebay.flink.job import Checkpoints
from forebay.pipeline.kafka import transactions as module
from forebay.pipeline.kafka.transactions import CommitWatch, Start, Topic, TopicCommits

BEGAN_MS = 1_000_000
OPEN = Transaction("Ongoing", BEGAN_MS)
COMMITTED = Transaction("CompleteCommit", BEGAN_MS)
PREPARED = Transaction("PrepareCommit", BEGAN_MS)
ABORTED = Transaction("CompleteAbort", BEGAN_MS)
EMPTY = Transaction("Empty")

# (Kafka's states of the transactions 0-N, newest completed checkpoint)
Look = tuple[dict[int, Transaction], int]


def lost_in(looks: list[Look], *, restored: int = 0) -> list[list[int]]:
    topic = TopicCommits(1, restored)
    return [
        [number for _, number in topic.look({(0, number): it for number, it in found.items()}, done)]
        for found, done in looks
    ]


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        ([({1: OPEN}, 0), ({1: COMMITTED, 2: OPEN}, 1), ({2: PREPARED}, 2)], [[], [], []]),
        ([({1: EMPTY, 2: EMPTY}, 1), ({2: EMPTY}, 2), ({}, 3)], [[], [], []]),
        # A commit takes its time.
        ([({1: OPEN}, 1), ({1: OPEN}, 2), ({1: COMMITTED}, 3)], [[], [], []]),
        ([({1: OPEN}, 1), ({1: ABORTED}, 2)], [[], [1]]),
        # Aborted before its checkpoint: Flink may meet it, and restore.
        ([({1: OPEN}, 0), ({1: ABORTED}, 0), ({1: ABORTED}, 1)], [[], [], [1]]),
        ([({1: COMMITTED, 2: ABORTED, 3: COMMITTED}, 3)], [[2]]),
        # Begun again by another producer that has written nothing, or that Kafka has forgotten.
        ([({1: OPEN}, 0), ({1: EMPTY}, 1)], [[], [1]]),
        ([({1: OPEN}, 0), ({}, 1)], [[], [1]]),
    ],
)
def test_due_but_uncommitted_is_lost(looks: list[Look], lost: list[list[int]]) -> None:
    assert lost_in(looks) == lost


def test_transactions_taken_back_by_a_restore_are_not_lost() -> None:
    topic = TopicCommits(1, 0)
    topic.look({(0, 2): COMMITTED, (0, 3): OPEN}, 2)
    topic.restored(2)
    # 3 and 4 are begun again; 5 was given up, and the new attempt leaves that number out.
    assert not topic.look({(0, 3): OPEN, (0, 4): OPEN, (0, 5): ABORTED}, 2, first=True)
    anew = Transaction("Ongoing", BEGAN_MS + 9)
    assert not topic.look({(0, 3): anew, (0, 4): ABORTED, (0, 5): ABORTED}, 2)
    assert not topic.look({(0, 3): replace(anew, state="CompleteCommit"), (0, 4): EMPTY, (0, 5): ABORTED}, 5)


def test_restored_checkpoints_transactions_stay() -> None:
    """Also between a restore and the next checkpoint."""
    topic = TopicCommits(1, 0)
    topic.look({(0, 1): OPEN, (0, 2): OPEN}, 1)
    topic.restored(1)
    assert topic.look({(0, 1): ABORTED, (0, 2): EMPTY}, 1, first=True) == [(0, 1)]


def test_checkpoint_is_safe_once_all_before_is_committed() -> None:
    topic = TopicCommits(2, 0)
    topic.look({(0, 1): COMMITTED, (1, 1): COMMITTED, (0, 2): OPEN, (1, 2): COMMITTED, (0, 3): OPEN}, 2)
    assert (topic.safe(1), topic.safe(2)) == (1, 1)
    topic.look({(0, 2): COMMITTED, (0, 3): OPEN}, 2)
    assert topic.safe(2) == 2


class FakeKafka:
    """Returns scripted transactions by id."""

    def __init__(self) -> None:
        self.transactions_: dict[str, Transaction] = {}
        self.away = False
        self.asked: list[int] = []

    def transactions(self, ids: Iterable[str]) -> dict[str, Transaction]:
        wanted = list(ids)
        self.asked.append(len(wanted))
        if self.away:
            raise KafkaAway("Kafka at k:1 does not answer")
        return {id: self.transactions_[id] for id in wanted if id in self.transactions_}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()

    @contextmanager
    def client(cluster: object, timeout_s: float) -> Iterator[FakeKafka]:
        yield fake

    monkeypatch.setattr(module, "kafka_admin", client)
    return fake


class Watched:
    """A job whose checkpoints complete on command."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.job = folder / ("a" * 32)
        self.clock = ManualClock(wall_ms=BEGAN_MS)
        sink = KafkaSink(type="kafka", bootstrap="k:1", topic="out")
        topics = (Topic("sink", sink, "r"), Topic("dead_letters", sink, "d"))
        self.watch = CommitWatch(topics, start, KeptCheckpoints(self.job), clock=self.clock)

    def look(self, done: int, *, restored: int = 0) -> None:
        self.clock.advance(1.0)
        self.watch(Checkpoints(0, 0, (), newest=done, newest_done=done, restored=restored))


def test_discarded_results_name_the_checkpoint_to_resume(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(0, 1))
    for number in (1, 2):
        kafka.transactions_[f"r-0-{number}"] = COMMITTED
        complete_checkpoint(watched.job, number)
        watched.look(number)
    kafka.transactions_["r-0-3"] = ABORTED
    complete_checkpoint(watched.job, 3)
    with pytest.raises(ResultsLost) as lost:
        watched.look(3)
    assert str(lost.value) == (
        "sink.topic: results are missing in topic 'out': Kafka has discarded r-0-3, which checkpoint 3 "
        "should have committed: open for longer than transaction_timeout_s (900), or ended by another "
        f"client. Resume with --from-checkpoint {watched.job}/savepoint-kept-2 to repeat them; results "
        "committed after that checkpoint will be duplicated"
    )


@pytest.mark.parametrize(
    ("start", "fix"),
    [
        (Start(0, 1), "Start over with --fresh to repeat them; all other results will be duplicated"),
        (Start(4, 1, Path("/before/chk-4")), "Resume with --from-checkpoint /before/chk-4 to repeat them"),
    ],
)
def test_losses_after_the_last_look_are_found_at_the_end(
    kafka: FakeKafka, tmp_path: Path, start: Start, fix: str
) -> None:
    watched = Watched(tmp_path, start)
    watched.look(start.number)
    # Numbers up to there are known and empty.
    for number in range(start.number + 1, start.number + 25):
        kafka.transactions_[f"d-0-{number}"] = EMPTY
    kafka.transactions_[f"d-0-{start.number + 23}"] = ABORTED
    with pytest.raises(ResultsLost, match=f"dead_letters.topic: .*d-0-{start.number + 23}, .* {fix}"):
        watched.watch.finished()


def test_end_with_everything_committed_is_clean(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(0, 2))
    watched.look(0)
    kafka.transactions_ = {"r-0-1": COMMITTED, "r-1-1": PREPARED, "r-0-2": EMPTY, "d-0-1": EMPTY}
    watched.watch.finished()


def test_kafka_may_be_away_except_at_the_end(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(0, 1))
    kafka.transactions_["r-0-1"] = ABORTED
    kafka.away = True
    watched.look(1)
    with pytest.raises(
        PipelineFailed, match=r"did not confirm the commit of its last results: .* does not answer"
    ):
        watched.watch.finished()
    kafka.away = False
    with pytest.raises(ResultsLost):
        watched.look(1)


def test_undecided_transactions_are_queried_once_a_second(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(0, 1))
    for number in range(1, 400):
        kafka.transactions_[f"r-0-{number}"] = COMMITTED
        watched.look(number)
        watched.watch(Checkpoints(0, 0, (), newest=number, newest_done=number))
    assert len(kafka.asked) == 2 * 399
    assert max(kafka.asked[2:]) == 2


def test_nothing_is_queried_without_a_topic(tmp_path: Path) -> None:
    watch = CommitWatch((), Start(0, 1), KeptCheckpoints(tmp_path))
    watch(Checkpoints(0, 0, (), newest_done=3))
    watch.finished()
    assert not any(tmp_path.iterdir()), Any


def test_restored_job_has_its_own_transactions(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(4, 1, Path("/chk-4")))
    kafka.transactions_ = {"r-0-5": OPEN, "d-0-5": EMPTY}
    kafka.transactions_["r-0-5"] = replace(OPEN, began_ms=BEGAN_MS + 5)
    watched.look(0, restored=1)
    kafka.transactions_["r-0-5"] = replace(ABORTED, began_ms=BEGAN_MS + 5)
    with pytest.raises(ResultsLost, match="r-0-5"):
        watched.look(5, restored=1)


def test_restore_during_a_run_gives_up_open_transactions(kafka: FakeKafka, tmp_path: Path) -> None:
    watched = Watched(tmp_path, Start(4, 1, Path("/chk-4")))
    for state in (OPEN, ABORTED, EMPTY):
        kafka.transactions_["r-0-5"] = state
        watched.look(4, restored=1 if state is OPEN else 2)
    watched.look(5, restored=2)
