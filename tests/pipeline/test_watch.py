"""Watching a running job: counts, backlog, rests, drains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.errors import PipelineFailed
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.flink.job import Checkpoints, JobFailure
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.pipeline import watch as module
from forebay.pipeline.backlog import LastCount
from forebay.pipeline.kafka.offsets import GroupOffsets, OffsetObservation, OffsetSettlement
from forebay.pipeline.load import parse_spec
from forebay.pipeline.messages import JobLost, JobStatus, StopRequests
from forebay.pipeline.snapshot import CheckpointStats, KvTransfers, Snapshot, counted
from forebay.pipeline.watch import CAUSE_LOOKS, JobRestarts, Rests, watch_until_end

NOW = Snapshot(1.0, "RUNNING", results=8, dead_letters=2, prompt_tokens=500, completion_tokens=100)


def test_results_rejected_by_the_sink_are_dead_letters() -> None:
    counts = {"accepted": 9.0, "results": 7.0, "dead_letters": 2.0, "too_large": 3.0}
    now = counted(NOW, counts, one_each=True)
    assert (now.accepted, now.results, now.dead_letters) == (9, 4, 5)
    assert now.failed == {"too_large_for_sink": 3}
    assert counted(NOW, counts | {"results": 0.0}, one_each=True).results == 0


def test_rejected_assignments_are_dead_letters_but_no_missing_results() -> None:
    counts = {"results": 7.0, "dead_letters": 2.0, "too_large": 3.0, "too_large_assignments": 2.0}
    now = counted(NOW, counts, one_each=False)
    assert (now.results, now.dead_letters, now.failed) == (6, 5, {"too_large_for_sink": 3})


def test_what_was_read_and_who_answers_is_counted() -> None:
    now = counted(NOW, {"read": 200.0, "read_ratio": 0.25, "replicas": 2.0}, one_each=False)
    assert (now.read, now.read_share, now.replicas) == (200, 0.25, 2)
    now = counted(now, {"read": 0.0}, one_each=False)
    assert (now.read, now.read_share, now.replicas) == (0, 0.25, None)


def spec(folder: Path, **changes: Any) -> Any:
    access = {"type": "kafka", "bootstrap": "h:1"}
    document = {
        "name": "p",
        "source": {**access, "topics": ["in"]},
        "prompt": "x",
        "sink": {"type": "jsonl", "path": "out"},
    }
    return parse_spec({**document, **changes}, base=folder)


STILL = Snapshot(1.0, "RUNNING", results=8)


def looks(rests: Rests, rounds: int, now: Snapshot) -> list[bool]:
    """For each round, whether it made a look (which saw `now`)."""
    made = []
    for _ in range(rounds):
        made.append(not rests.passes())
        if made[-1]:
            rests.looked(STILL, now)
    return made


def test_idle_job_is_polled_more_rarely() -> None:
    rests = Rests()
    later = replace(STILL, elapsed_s=9.0, backlog=TopicBacklog(0, None, None, 1.0))
    assert looks(rests, 10, later) == [True] * 10
    assert looks(rests, 20, later) == [False, False, False, True] * 5
    assert looks(rests, 20, later) == [*[False] * 9, True] * 2
    checked = replace(STILL, checkpoints=CheckpointStats(9, 0, 80, 5000))
    assert looks(rests, 10, checked) == [*[False] * 9, True], "a checkpoint is nothing new"
    moved = replace(STILL, results=9)
    assert looks(rests, 10, moved) == [*[False] * 9, True]
    assert looks(rests, 10, later) == [True] * 10, "one look that saw something counts for ten"


def test_rests_that_an_answer_ends_become_long() -> None:
    answers = [0]
    rests = Rests(lambda: answers[0])
    assert looks(rests, 80, STILL)[-10:] == [*[False] * 9, True]
    assert looks(rests, 40, STILL) == [*[False] * 19, True] * 2
    assert looks(rests, 19, STILL) == [False] * 19
    answers[0] += 1
    assert looks(rests, 10, STILL) == [True] * 10


@pytest.mark.parametrize(
    "awaits",
    [
        {"in_flight": 1},
        {"pending": 1},
        {"oldest_read_ms": 5},
        {"backlog": TopicBacklog(1, None, None, 0.0)},
        {"state": "RESTARTING"},
    ],
    ids=str,
)
def test_job_with_pending_answers_is_polled_every_round(awaits: dict[str, Any]) -> None:
    seen = replace(STILL, **awaits)
    rests = Rests()
    for _ in range(40):
        assert not rests.passes()
        rests.looked(seen, seen)


def test_operator_without_records_awaits_nothing() -> None:
    rests = Rests()
    idle = replace(STILL, oldest_read_ms=NOTHING_READ_MS)
    for _ in range(10):
        assert not rests.passes()
        rests.looked(idle, idle)
    assert rests.passes()


def test_idle_job_settles_once() -> None:
    rests, settled = Rests(), []
    for now in (*[STILL] * 40, replace(STILL, results=9), *[STILL] * 40):
        rests.looked(STILL, now)
        settled.append(rests.settled)
    assert [at for at, yes in enumerate(settled) if yes] == [14, 55]


def test_needed_looks_happen_every_round() -> None:
    rests = Rests()
    for _ in range(40):
        assert not rests.passes()
        rests.looked(STILL, STILL, awaits=True)


@pytest.mark.parametrize(
    ("source", "awaits"),
    [({"until_latest": True}, True), ({}, False), ({"type": "jsonl", "path": "in"}, False)],
)
def test_bounded_topic_needs_every_look(tmp_path: Path, source: dict[str, Any], awaits: bool) -> None:
    kafka = {"type": "kafka", "bootstrap": "h:1", "topics": ["in"]}
    read = spec(tmp_path, source=source if "type" in source else {**kafka, **source})
    settling: OffsetSettlement[Any] = OffsetSettlement(3.0)
    nothing: Any = None
    offsets = GroupOffsets(read, (), nothing, settling, clock=ManualClock())
    assert offsets.awaits == awaits
    settling.look(OffsetObservation(0.0, 0, 0, 0, 0, 0, 0), ("somewhere",))
    assert settling.settles
    assert offsets.awaits == (read.source.type == "kafka")


class Job:
    """A job without work, until `rounds` have passed."""

    id = "a"
    rest: Any = None

    def __init__(self, rounds: int, **counts: float) -> None:
        self._counts = counts
        self.looks: list[int] = []
        self.drained: list[int] = []
        self.round = -1
        self._rounds = rounds

    def ended(self) -> str | None:
        self.round += 1
        return "" if self.round == self._rounds else None

    def state(self) -> str:
        self.looks.append(self.round)
        return "RUNNING"

    def restarts(self) -> int:
        return 0

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(0, 0, ())

    def task_managers(self) -> int:
        return 1

    def counts(self) -> dict[str, float]:
        return {"accepted": 8, "results": 8, **self._counts}

    def drain(self, savepoints: Path) -> None:
        self.drained.append(self.round)


def test_kv_transfers_are_reported_once_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[KvTransfers | None] = []
    for counts in ({}, {"kv_transfers": 5.0, "kv_fallbacks_no_server": 2.0, "kv_fallbacks_no_kv_cache": 1.0}):
        watched(Job(3, **counts), monkeypatch, seen=lambda now: found.append(now.kv_transfers))
    assert found[0] is None
    assert found[-1] == KvTransfers(transferred=5, no_server=2, no_kv_cache=1)
    assert found[-1].fallbacks == 3


def watched(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    *,
    drain_at: int = -1,
    seen: Callable[[Snapshot], object] = lambda now: None,
    **more: Any,
) -> list[tuple[int, str]]:
    """Every report of the job, with its round; the run is asked to drain at `drain_at`."""
    stop_requests, told = StopRequests(), list[tuple[int, str]]()

    def tell(look: JobStatus) -> None:
        told.append((job.round, look.snapshot.state))
        seen(look.snapshot)
        stop_requests.drain = stop_requests.drain or job.round == drain_at

    monkeypatch.setattr(module, "POLL_S", 0.0)
    any_job: Any = job
    last = watch_until_end(
        any_job,
        tell,
        stop_requests,
        Path("savepoints"),
        one_each=True,
        waiting=LastCount(ManualClock()),
        answered=lambda now: False,
        committed=lambda checkpoints: None,
        **more,
    )
    assert (last.state, last.results) == ("FINISHED", 8)
    return told


def test_idle_rounds_report_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    job, rests = Job(60), list[int]()
    told = watched(job, monkeypatch, at_rest=lambda: rests.append(job.round))
    assert told == [(n, "RUNNING") for n in range(60)]
    # The first look sees what came before it.
    assert job.looks == [*range(11), *range(14, 34, 4), *range(40, 60, 10)]
    assert rests == [job.looks[15]]
    job = Job(60)
    watched(job, monkeypatch, awaits=lambda: True, at_rest=lambda: pytest.fail("it is awaited"))
    assert job.looks == list(range(60))


def test_idle_job_is_drained_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(40)
    watched(job, monkeypatch, drain_at=31)
    assert 31 not in job.looks
    assert job.drained[0] == 32


def test_checkpoint_failed_at_the_jobs_end_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.0)
    ended = iter([None, ""])
    job: Any = SimpleNamespace(
        ended=lambda: next(ended),
        state=lambda: "RUNNING",
        restarts=lambda: 0,
        counts=dict,
        checkpoints=lambda: Checkpoints(1, 1, (), failure="declined (task is closing)"),
        task_managers=lambda: 1,
    )
    told: list[JobStatus] = []
    last = watch_until_end(
        job,
        told.append,
        StopRequests(),
        tmp_path,
        one_each=True,
        waiting=LastCount(ManualClock()),
        answered=lambda _: False,
        committed=lambda _: None,
    )
    assert [look.snapshot.checkpoint_failure for look in told] == ["declined (task is closing)"]
    assert (last.state, last.checkpoint_failure) == ("FINISHED", "")


def test_restart_counts_with_its_own_cause() -> None:
    restarts = JobRestarts()
    first, second = JobFailure(1000, "", "ValueError: one"), JobFailure(2000, "", "ValueError: two")

    def seen(count: int, *failures: JobFailure) -> tuple[int, str]:
        job: Any = SimpleNamespace(restarts=lambda: count, failures=lambda: list(failures))
        return restarts(job)

    assert seen(0) == (0, "")
    assert seen(1) == (0, ""), "Flink's list of failures is older"
    assert seen(1, first) == (1, "ValueError: one")
    assert seen(1, first, second) == (1, "")
    assert seen(2, first) == (1, "")
    assert seen(2, first, second) == (2, "ValueError: two")
    third = JobFailure(3000, "", "ValueError: three")
    assert seen(3, first, second, third) == (3, "ValueError: three")


def test_failure_listed_before_its_restart_is_counted_is_its_cause() -> None:
    restarts = JobRestarts()
    both = [JobFailure(1000, "", "ValueError: one"), JobFailure(2000, "", "ValueError: two")]
    for count in (1, 2):
        job: Any = SimpleNamespace(restarts=lambda count=count: count, failures=lambda: both)
        assert restarts(job) == (count, "ValueError: two")


def test_restart_without_a_cause_counts_in_the_end() -> None:
    restarts = JobRestarts()
    job: Any = SimpleNamespace(restarts=lambda: 1, failures=list)
    assert [restarts(job) for _ in range(CAUSE_LOOKS)] == [
        *[(0, "")] * (CAUSE_LOOKS - 1),
        (1, "Flink does not report why"),
    ]


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("TimeoutException: Heartbeat of TaskManager with id 9716fea8 timed out.", JobLost),
        ("JobMasterException: TaskManager with id 9716fea8 is no longer reachable.", JobLost),
        ("OutOfMemoryError: Metaspace", JobLost),
        ("OutOfMemoryError: Cannot reserve 32768 bytes of direct buffer memory", JobLost),
        ("OutOfMemoryError: unable to create native thread: possibly out of memory", JobLost),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", PipelineFailed),
        ("FunctionFailed: event 7: OutOfMemoryError: Metaspace", PipelineFailed),
        ("FunctionFailed: event 7: KeyError", PipelineFailed),
        ("FunctionFailed: event 7: the licence server is no longer reachable", PipelineFailed),
    ],
)
def test_causes_that_a_new_flink_fixes(tmp_path: Path, cause: str, error: type[PipelineFailed]) -> None:
    ended: Any = SimpleNamespace(ended=lambda: cause)
    with pytest.raises(PipelineFailed, match=cause.partition(":")[0]) as raised:
        watch_until_end(
            ended,
            lambda _: None,
            StopRequests(),
            tmp_path,
            one_each=True,
            waiting=LastCount(ManualClock()),
            answered=lambda _: False,
            committed=lambda _: None,
        )
    assert type(raised.value) is error
