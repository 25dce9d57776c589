"""What counts as a stall, and how often a run restarts Flink."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.engine.launch import ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch
from forebay.errors import PipelineFailed
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.pipeline.messages import JobStatus, Signs
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.supervision import (
    ASK_EVERY_S,
    HALTED,
    LIMITS_S,
    MAX_RESTARTS,
    MUTE,
    NO_TASK_MANAGER,
    NOT_RUNNING,
    SILENT_S,
    STILL,
    TOO_FEW,
    UNANSWERED,
    UNUSED_S,
    WITHIN_S,
    EngineSupervisor,
    JobStallDetector,
    OutageReason,
    Restarts,
    SupervisedEngine,
)

BUSY = JobStatus(Snapshot(1.0, "RUNNING", accepted=9, results=4, in_flight=5), Signs(looked_ms=7))
DEADLINE_S = 1000.0


def watched(*looks: JobStatus, every_s: float = 1.0, **more: object) -> tuple[JobStallDetector, float]:
    """A watch over an attempt with these looks, one per second, and the time of the last."""
    stall_detector, now_s = JobStallDetector(0.0, DEADLINE_S, **more), 0.0  # type: ignore[arg-type]
    for look in looks:
        now_s += every_s
        stall_detector.observe(now_s, look)
    return stall_detector, now_s


def with_signs(look: JobStatus = BUSY, **signs: object) -> JobStatus:
    return replace(look, signs=replace(look.signs, **signs))  # type: ignore[arg-type]


def with_counts(look: JobStatus = BUSY, **counts: object) -> JobStatus:
    return replace(look, snapshot=replace(look.snapshot, **counts))  # type: ignore[arg-type]


def after(look: JobStatus, seconds: float, **more: object) -> str | None:
    """Return the stall if `look` is all that is seen for this long after the first time."""
    stall_detector, now_s = watched(look, look, every_s=0.0, **more)
    for _ in range(4):
        now_s += seconds / 4
        stall_detector.observe(now_s, look)
    return stall_detector.stalled(now_s)


def test_silent_process_is_lost() -> None:
    stall_detector = JobStallDetector(100.0, DEADLINE_S)
    assert stall_detector.stalled(100.0 + SILENT_S - 1) is None
    stall_detector.observe(150.0)
    assert stall_detector.stalled(150.0 + SILENT_S - 1) is None
    assert stall_detector.stalled(150.0 + SILENT_S) == "Flink's process sent nothing for 180 s"


@pytest.mark.parametrize(
    ("look", "limit_s", "says"),
    [
        (with_signs(answers=False), LIMITS_S[MUTE], "Flink's REST service did not answer for 60 s"),
        (with_signs(task_managers=0), LIMITS_S[NO_TASK_MANAGER], "Flink had no task manager for 20 s"),
        (with_counts(state="RESTARTING"), LIMITS_S[HALTED], "the job did not run for 120 s"),
        (with_counts(state="CANCELLING"), LIMITS_S[HALTED], "the job did not run for 120 s"),
        (BUSY, LIMITS_S[STILL], "the operator did not check its requests for 300 s"),
    ],
)
def test_long_uninterrupted_sign_is_a_stall(look: JobStatus, limit_s: float, says: str) -> None:
    assert after(look, limit_s - 0.1) is None
    assert after(look, limit_s) == says
    assert after(look, 10 * limit_s, embedded=False) is None, "a cluster may get back what it lost"


def test_task_manager_process_has_time_to_restart() -> None:
    one = with_signs(task_managers=1)
    assert after(one, LIMITS_S[TOO_FEW] - 0.1, task_managers=2) is None
    assert after(one, LIMITS_S[TOO_FEW], task_managers=2) == "Flink lacked a task manager for 60 s"
    assert after(with_signs(task_managers=2), 100.0, task_managers=2) is None
    assert after(one, 100.0) is None


def test_calls_beyond_the_deadline_are_a_stall() -> None:
    """The operator checks its calls, and each ends within the deadline, with or without an answer."""

    def unanswered(seconds: float) -> str | None:
        # With the second look it is seen for the first time.
        stall_detector, now_s = watched(*(with_signs(looked_ms=n) for n in range(2 + int(seconds))))
        return stall_detector.stalled(now_s)

    limit_s = DEADLINE_S + LIMITS_S[UNANSWERED]
    assert unanswered(limit_s - 1) is None
    assert unanswered(limit_s) == "no result, failure or retry of the requests in flight for 1300 s"


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(with_counts(in_flight=0, oldest_read_ms=NOTHING_READ_MS), id="an idle source"),
        pytest.param(with_counts(in_flight=0, oldest_read_ms=0), id="not known yet"),
        pytest.param(with_counts(in_flight=0, state="FINISHED"), id="at its end"),
    ],
)
def test_no_stall_if_nothing_could_move(look: JobStatus) -> None:
    assert after(look, 100_000.0) is None


def test_event_waiting_for_the_first_slot_counts() -> None:
    assert after(with_counts(in_flight=0, oldest_read_ms=1), LIMITS_S[STILL]) is not None


@pytest.mark.parametrize("moving", [{"looked_ms": 1}, {"held_back_ms": 1}])
def test_backpressure_or_polling_is_not_a_stall(moving: dict[str, int]) -> None:
    """A slow engine with hour-long calls: the operator keeps polling. Kafka is away: backpressure."""
    name = next(iter(moving))
    looks = [with_counts(with_signs(**{name: n}), results=n // 900) for n in range(4000)]
    stall_detector, now_s = watched(*looks)
    assert stall_detector.stalled(now_s) is None


def test_interruption_resets_the_stall_timer() -> None:
    away = with_signs(answers=False)
    stall_detector, now_s = watched(*[away] * 59, BUSY, *[away] * 59)
    assert stall_detector.stalled(now_s) is None
    stall_detector.observe(now_s + 2, away)
    assert stall_detector.stalled(now_s + 2) is not None


LOOKS = st.builds(
    JobStatus,
    st.builds(
        Snapshot,
        st.just(0.0),
        st.sampled_from(["RUNNING", *sorted(NOT_RUNNING)]),
        results=st.integers(0, 1),
        in_flight=st.integers(0, 1),
    ),
    st.builds(
        Signs,
        answers=st.booleans(),
        task_managers=st.integers(0, 1),
        looked_ms=st.integers(0, 1),
        held_back_ms=st.integers(0, 1),
    ),
)


@given(st.lists(st.tuples(st.floats(0.1, 100.0), LOOKS), min_size=1, max_size=60))
def test_stall_requires_one_sign_in_every_look(steps: list[tuple[float, JobStatus]]) -> None:
    stall_detector, now_s = JobStallDetector(0.0, 5.0), 0.0
    times: list[float] = []
    for pause_s, look in steps:
        now_s += pause_s
        stall_detector.observe(now_s, look)
        times.append(now_s)
    looks = [look for _, look in steps]

    def since_s(sign: str) -> float:
        begin_s = now_s
        for index in range(len(looks) - 1, -1, -1):
            if sign not in signs_of(looks[index], looks[index - 1] if index else None):
                break
            begin_s = times[index]
        else:
            return now_s - begin_s
        return now_s - begin_s if sign in signs_of(looks[-1], looks[-2] if len(looks) > 1 else None) else -1.0

    limits = {"mute": 60.0, "none": 20.0, "halted": 120.0, "still": 300.0, "unanswered": 305.0}
    assert (stall_detector.stalled(now_s) is not None) == any(
        since_s(sign) >= limits[sign] for sign in limits
    )


def signs_of(look: JobStatus, before: JobStatus | None) -> set[str]:
    now, signs = look.snapshot, look.signs
    if not signs.answers:
        return {"mute"}
    found = {"none"} if not signs.task_managers else set()
    if now.state != "RUNNING":
        return found | {"halted"}
    if before is None or not (now.in_flight and before.snapshot.in_flight):
        return found
    if signs.held_back_ms == before.signs.held_back_ms:
        found |= {"still"} if signs.looked_ms == before.signs.looked_ms else set()
        found |= {"unanswered"} if now.results == before.snapshot.results else set()
    return found


def test_first_restart_is_immediate_then_pauses_double() -> None:
    restarts = Restarts(most=8)
    assert [restarts.grant(float(n)) for n in range(9)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert restarts.recent == 8


def test_old_restarts_do_not_count() -> None:
    restarts = Restarts(most=2, within_s=600.0)
    assert [restarts.grant(at_s) for at_s in (0.0, 10.0, 20.0, 600.0)] == [0.0, 1.0, None, 1.0]
    assert restarts.grant(10_000.0) == 0.0


@given(st.lists(st.floats(0.0, 500.0), max_size=60), st.integers(1, 5))
def test_restarts_in_any_ten_minutes_are_limited(gaps: list[float], most: int) -> None:
    restarts, now_s = Restarts(most=most, within_s=600.0), 0.0
    made: list[float] = []
    for gap_s in gaps:
        now_s += gap_s
        pause_s = restarts.grant(now_s)
        if pause_s is not None:
            assert 0.0 <= pause_s <= 30.0
            made.append(now_s)
        recent = [at_s for at_s in made if now_s - at_s < 600.0]
        assert len(recent) <= most
        assert (pause_s is None) <= (len(recent) == most)


MakeOwned = Callable[..., Any]


def no_launch(port: int, cores: tuple[int, ...]) -> EngineLaunch:
    raise AssertionError("nothing is to be started")


def test_started_replicas_are_owned_and_urls_are_not(tmp_path: Path) -> None:
    with Replicas(ReplicaRegistry(tmp_path / "replicas.json"), no_launch, model="m") as replicas:
        assert isinstance(replicas, SupervisedEngine)
        EngineSupervisor(replicas).check_replicas()
    assert not isinstance(["http://somewhere"], SupervisedEngine)
    EngineSupervisor(["http://somewhere"]).check_replicas()


def test_dead_replica_is_reported_and_restarted(make_owned: MakeOwned) -> None:
    owned, text = make_owned(2), list[str]()
    keeper = EngineSupervisor(owned, ManualClock())
    keeper.check_replicas(text.append)
    assert (owned.restarted, text, keeper.failed) == ([], [], 0)
    owned.die(1)
    keeper.check_replicas(text.append)
    keeper.check_replicas(text.append)
    assert (owned.restarted, keeper.failed) == ([1], 1)
    assert text == ["the local engine at http://r:1 ended and is being restarted; its log was the.log"]


def test_replica_that_cannot_restart_ends_the_run(make_owned: MakeOwned) -> None:
    owned = make_owned()
    owned.die()
    owned.broken = True
    with pytest.raises(PipelineFailed, match="ended and cannot be restarted: no memory"):
        EngineSupervisor(owned, ManualClock()).check_replicas()


def test_frequent_but_not_occasional_deaths_end_the_run(make_owned: MakeOwned) -> None:
    owned, clock = make_owned(), ManualClock()
    keeper = EngineSupervisor(owned, clock)
    for _ in range(2 * MAX_RESTARTS):
        owned.die()
        keeper.check_replicas()
        clock.advance(WITHIN_S / MAX_RESTARTS)
    assert len(owned.restarted) == 2 * MAX_RESTARTS
    clock.advance(WITHIN_S)
    for _ in range(MAX_RESTARTS):
        owned.die()
        keeper.check_replicas()
        clock.advance(WITHIN_S / MAX_RESTARTS - 1)
    owned.die()
    with pytest.raises(PipelineFailed, match=r"ended 4 times within 10 minutes; its log is the\.log"):
        keeper.check_replicas()


def test_no_stall_while_no_replica_is_ready() -> None:
    begin, now_s = JobStallDetector(0.0, DEADLINE_S), 0.0
    for second in range(5000):
        now_s = float(second)
        looks = with_signs(looked_ms=second)
        begin.observe(now_s, looks, served=False)
    assert begin.stalled(now_s) is None
    for second in range(5000, 10_000):
        now_s = float(second)
        begin.observe(now_s, with_signs(looked_ms=second))
    assert "no result, failure or retry" in (begin.stalled(now_s) or "")


def test_reason_is_asked_while_no_replica_gets_requests() -> None:
    reasons = iter(["it serves other", "connection refused"])
    trouble = OutageReason(lambda: next(reasons), lambda task: task())
    times = (0.0, UNUSED_S - 1, UNUSED_S, UNUSED_S + ASK_EVERY_S - 1, UNUSED_S + ASK_EVERY_S)
    found = [trouble.observe(now_s, 0) for now_s in times]
    assert found == ["", "", "it serves other", "it serves other", "connection refused"]
    assert trouble.observe(100.0, 1) == ""
    assert trouble.observe(101.0, 0) == "", "the next outage may have another reason"


def test_one_question_at_a_time() -> None:
    tasks: list[Callable[[], None]] = []
    trouble = OutageReason(lambda: "connection refused", tasks.append)
    for now_s in (0.0, UNUSED_S, 10 * ASK_EVERY_S):
        trouble.observe(now_s, 0)
    (task,) = tasks
    task()
    assert trouble.observe(20 * ASK_EVERY_S, 0) == "connection refused"
    assert len(tasks) == 2


def test_late_reason_of_an_earlier_outage_is_dropped() -> None:
    tasks: list[Callable[[], None]] = []
    trouble = OutageReason(lambda: "connection refused", tasks.append)
    for now_s, replicas in ((0.0, 0), (UNUSED_S, 0), (UNUSED_S + 1, 1), (UNUSED_S + 2, 0)):
        assert trouble.observe(now_s, replicas) == ""
    tasks.pop()()
    assert trouble.observe(UNUSED_S + 3, 0) == ""


@pytest.mark.parametrize("replicas", [None, 1])
def test_nothing_is_asked_while_replicas_get_requests(replicas: int | None) -> None:
    trouble = OutageReason(lambda: pytest.fail("asked"), lambda task: task())
    assert {trouble.observe(now_s, replicas) for now_s in (0.0, 100.0)} == {""}
