"""What an earlier job left in Kafka, at the start of the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.topic_client import consume_committed
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.operators import complete_checkpoint

from forebay.connectors.kafka.admin import Transaction, kafka_admin
from forebay.connectors.kafka.clients import commit
from forebay.connectors.kafka.cluster import KafkaCluster
from forebay.errors import SettingError
from forebay.pipeline.kafka import transactions as module
from forebay.pipeline.kafka.transactions import Name, end_transactions, held, lost, nothing_committed_after
from forebay.pipeline.load import parse_spec
from forebay.pipeline.state_store import Completed, RunState

OLD, OTHER = "a" * 32, "b" * 32
STATES = ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort")


class FakeKafka:
    def __init__(self, **states: str) -> None:
        self.states = states
        self.before_commit: Callable[[str], None] = lambda id: None

    def transactions(self, ids: Iterable[str]) -> dict[str, Transaction]:
        return {id: Transaction(self.states[id]) for id in ids if id in self.states}

    def abort(self, ids: Iterable[str]) -> None:
        self.states |= dict.fromkeys(ids, "CompleteAbort")

    def commit(self, cluster: object, id: str, transaction: Transaction) -> bool:
        self.before_commit(id)
        if self.states[id] == "Ongoing":
            self.states[id] = "CompleteCommit"
            return True
        return False

    def results(self, job: str = OLD) -> dict[str, str]:
        """States of a job's result transactions, by subtask and number."""
        prefix = f"forebay-p-{job}-results-"
        return {id.removeprefix(prefix): state for id, state in self.states.items() if id.startswith(prefix)}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    fake = FakeKafka()

    @contextmanager
    def client(cluster: object, timeout_s: float) -> Iterator[FakeKafka]:
        yield fake

    monkeypatch.setattr(module, "kafka_admin", client)
    monkeypatch.setattr(module, "commit", fake.commit)
    return fake


def spec(folder: Path, **changes: Any) -> Any:
    topic = {"type": "kafka", "bootstrap": "k:1", "topic": "out"}
    return parse_spec(
        {
            "name": "p",
            "source": {"type": "generator", "rate": 1.0},
            "prompt": "{{ text }}",
            "sink": topic,
            "dead_letters": {**topic, "topic": "letters"},
            "checkpoint": {"dir": str(folder)},
            **changes,
        }
    )


def results(states: dict[str, str], job: str = OLD) -> dict[str, str]:
    return {f"forebay-p-{job}-results-{name}": state for name, state in states.items()}


def test_resumed_checkpoint_commits_and_later_ones_abort(kafka: FakeKafka, tmp_path: Path) -> None:
    complete_checkpoint(tmp_path / OLD, 16)
    newest = complete_checkpoint(tmp_path / OLD, 17)
    kafka.states |= results(
        {"0-16": "CompleteCommit", "0-17": "Ongoing", "0-18": "Ongoing", "1-17": "Empty", "1-19": "Ongoing"}
    )
    recovered = end_transactions(spec(tmp_path), RunState(job=OLD, parallelism=2), newest)
    assert (recovered.checkpoint, recovered.reason) == (newest, "")
    assert kafka.results() == {
        "0-16": "CompleteCommit",
        "0-17": "CompleteCommit",
        "0-18": "CompleteAbort",
        "1-17": "Empty",
        "1-19": "CompleteAbort",
    }


def test_job_without_a_checkpoint_commits_nothing(kafka: FakeKafka, tmp_path: Path) -> None:
    restored = complete_checkpoint(tmp_path / OLD, 17)
    kafka.states |= results({"0-17": "CompleteCommit"}) | results({"0-18": "Ongoing"}, OTHER)
    end_transactions(spec(tmp_path), RunState(job=OTHER), restored)
    assert kafka.results(OTHER) == {"0-18": "CompleteAbort"}


def test_fresh_start_aborts_open_transactions(kafka: FakeKafka, tmp_path: Path) -> None:
    before = RunState(job=OLD, completed=Completed(number=5000))
    kafka.states |= results({"0-4999": "CompleteCommit", "0-5000": "Ongoing", "0-5004": "Ongoing"})
    assert end_transactions(spec(tmp_path), before, None).checkpoint is None
    assert kafka.results() == {
        "0-4999": "CompleteCommit",
        "0-5000": "CompleteAbort",
        "0-5004": "CompleteAbort",
    }


def test_copied_checkpoint_keeps_its_transactions(kafka: FakeKafka, tmp_path: Path) -> None:
    chosen = complete_checkpoint(tmp_path / "copy", 17)
    kafka.states |= results({"0-17": "Ongoing", "0-18": "Ongoing"})
    before = RunState(job=OLD, completed=Completed(number=18))
    assert end_transactions(spec(tmp_path), before, chosen, chosen=True).checkpoint == chosen
    assert kafka.results() == {"0-17": "Ongoing", "0-18": "CompleteAbort"}


@pytest.mark.parametrize("changes", [{}, {"prompt": None, "application": {"type": "topics"}}])
def test_uncommitted_newest_checkpoint_falls_back_to_the_previous(
    kafka: FakeKafka, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Its upload succeeded, the answer was lost, and the earlier job restarted from the previous one."""
    older, newest = (complete_checkpoint(tmp_path / OLD, number) for number in (14, 15))
    kafka.states |= results({"0-14": "Ongoing", "0-15": "CompleteAbort"})
    recovered = end_transactions(spec(tmp_path, **changes), RunState(job=OLD), newest)
    assert recovered.checkpoint == older
    assert recovered.reason == (
        f"Kafka has aborted forebay-p-{OLD}-results-0-15 with results of checkpoint 15, "
        "which will be repeated"
    )
    assert kafka.results() == {"0-14": "CompleteCommit", "0-15": "CompleteAbort"}


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        # The results of one subtask are visible.
        ({"0-15": "CompleteAbort", "1-15": "CompleteCommit"}, {}),
        # Dead letters in a file may be.
        ({"0-15": "CompleteAbort"}, {"dead_letters": {"type": "jsonl", "path": "letters"}}),
        # Those of the checkpoint before are lost, too.
        ({"0-14": "CompleteAbort", "0-15": "CompleteAbort"}, {}),
    ],
)
def test_repeated_or_lost_results_are_rejected(
    kafka: FakeKafka, tmp_path: Path, states: dict[str, str], changes: dict[str, Any]
) -> None:
    older, newest = (complete_checkpoint(tmp_path / OLD, number) for number in (14, 15))
    kafka.states |= results(states)
    before = RunState(job=OLD, parallelism=2)
    with pytest.raises(SettingError) as caught:
        end_transactions(spec(tmp_path, **changes), before, newest)
    assert str(caught.value) == (
        f"sink.topic: Kafka has aborted forebay-p-{OLD}-results-0-15 with results of checkpoint 15: open for "
        f"longer than transaction_timeout_s (900), or ended by another run. Resume with --from-checkpoint "
        f"{older} to repeat them, or with --from-checkpoint {newest} to continue without them"
    )
    assert kafka.results() == states
    assert end_transactions(spec(tmp_path, **changes), before, newest, chosen=True).checkpoint == newest


def test_earlier_job_may_abort_during_a_commit(kafka: FakeKafka, tmp_path: Path) -> None:
    older, newest = (complete_checkpoint(tmp_path / OLD, number) for number in (14, 15))
    kafka.states |= results({"0-14": "CompleteCommit", "0-15": "Ongoing"})
    kafka.before_commit = lambda id: kafka.abort([id])
    assert end_transactions(spec(tmp_path), RunState(job=OLD), newest).checkpoint == older


def test_topic_without_transactions_is_not_queried(tmp_path: Path) -> None:
    topic = {"type": "kafka", "bootstrap": "k:1", "topic": "out", "guarantee": "at-least-once"}
    newest = complete_checkpoint(tmp_path / OLD, 15)
    recovered = end_transactions(spec(tmp_path, sink=topic, dead_letters=topic), RunState(job=OLD), newest)
    assert recovered.checkpoint == newest


@given(
    st.dictionaries(
        st.builds(Name, st.sampled_from(("sink", "dead_letters")), st.integers(0, 2), st.integers(1, 6)),
        st.sampled_from(STATES).map(Transaction),
    ),
    st.integers(0, 6),
)
def test_checkpoint_has_each_subtasks_newest_transaction(found: dict[Name, Transaction], number: int) -> None:
    newest = held(found, number)
    assert len({(name.key, name.subtask) for name in newest}) == len(newest)
    for name in found:
        same = [each for each in newest if (each.key, each.subtask) == (name.key, name.subtask)]
        assert name.number > number or (len(same) == 1 and name.number <= same[0].number <= number)
    assert set(lost(found, number)) == {n for n, each in newest.items() if "Abort" in each.state}
    committed = [name for name, each in found.items() if "Commit" in each.state]
    assert nothing_committed_after(found, number) == all(name.number <= number for name in committed)


@pytest.mark.flink
def test_real_transaction_is_committed_or_aborted(
    node: Any, kafka_jar: Path, topic: Callable[..., str], flink_logs: Path
) -> None:
    name = topic()

    def begin(id: str, value: bytes) -> Producer:
        producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": f"{name}-{id}"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        return producer

    first, second = begin("1", b"committed"), begin("2", b"aborted")
    cluster = KafkaCluster(node.bootstrap)
    with kafka_admin(cluster, timeout_s=60.0) as admin:
        found = admin.transactions([f"{name}-1", f"{name}-2"])
        assert commit(cluster, f"{name}-1", found[f"{name}-1"])
        admin.abort([f"{name}-2"])
        assert not commit(cluster, f"{name}-2", found[f"{name}-2"])
        # As Flink does with what it restores. Kafka accepts it, or has given out the next epoch.
        commit(cluster, f"{name}-1", found[f"{name}-1"])
    assert [message.value() for message in consume_committed(node.bootstrap, name)] == [b"committed"]
    del first, second
