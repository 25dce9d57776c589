from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.flink.job import JvmGone
from forebay.flink.job_activity import CheckpointEnd
from forebay.pipeline.checkpoint_loop import (
    CORE_SHARE,
    MIN_S,
    TIME_SHARE,
    CheckpointLoop,
    CheckpointSchedule,
    processor_s,
)
from forebay.testing import wait_until


class Job:
    """Answers and reads at given times of a clock; checkpoints take `duration_s`, and end with `end`."""

    def __init__(self, clock: ManualClock, *, answers: list[float], reads: list[float]) -> None:
        self.clock = clock
        self.answers, self.reads = answers, reads
        self.duration_s, self.end = 0.01, CheckpointEnd.COMPLETE
        self.checkpoints: list[float] = []

    def _taken(self, times: list[float]) -> bool:
        now_s = self.clock.monotonic_s()
        found = [time_s for time_s in times if time_s <= now_s]
        times[:] = [time_s for time_s in times if time_s > now_s]
        return bool(found)

    def await_answer(self, timeout_s: float) -> bool:
        now_s = self.clock.monotonic_s()
        first_s = min(self.answers, default=now_s + timeout_s)
        self.clock.advance(max(0.0, min(first_s - now_s, timeout_s)))
        return self._taken(self.answers)

    def take_answers(self) -> None:
        self._taken(self.answers)

    def take_reads(self) -> bool:
        return self._taken(self.reads)

    def wake(self) -> None: ...

    def trigger(self) -> CheckpointEnd:
        self.checkpoints.append(round(self.clock.monotonic_s(), 3))
        self.clock.advance(self.duration_s)
        return self.end


def played(job: Job, until_s: float, most_s: float = 5.0) -> list[float]:
    """The times of the checkpoints until `until_s`."""
    loop = CheckpointLoop(job, CheckpointSchedule(most_s, job.clock.monotonic_s()), clock=job.clock)
    while job.clock.monotonic_s() < until_s:
        loop.step(job.clock.advance)
    return job.checkpoints


def job(*, answers: list[float] | None = None, reads: list[float] | None = None) -> Job:
    return Job(ManualClock(0.0), answers=answers or [], reads=reads or [])


def test_no_checkpoints_without_activity() -> None:
    assert played(job(), 1000.0) == []


def test_an_answer_is_committed_at_once_and_only_once() -> None:
    assert played(job(answers=[12.3]), 100.0) == [12.3]


def test_waits_that_an_answer_ended_are_counted() -> None:
    of = job(answers=[12.3, 40.0], reads=[30.0])
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    seen = set[tuple[bool, int]]()
    while of.clock.monotonic_s() < 60.0:
        loop.step(of.clock.advance)
        seen.add((of.clock.monotonic_s() >= 30.0, loop.waits))
    assert seen == {(False, 0), (False, 1), (True, 1), (True, 2)}


def test_steady_answers_are_committed_at_the_least_interval() -> None:
    made = played(job(answers=[10 + n / 100 for n in range(100)]), 30.0)
    assert made == pytest.approx([10 + n * MIN_S for n in range(6)], abs=0.011)


def test_events_without_answers_are_checkpointed_within_the_bound() -> None:
    made = played(job(reads=[7.0, 31.0]), 100.0)
    assert len(made) == 2
    assert 7.0 <= made[0] <= 12.0
    assert 31.0 <= made[1] <= 36.0


def test_requested_checkpoint_is_made_once() -> None:
    of = job()
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    loop.want()
    while of.clock.monotonic_s() < 60.0:
        loop.step(of.clock.advance)
    assert of.checkpoints == [5.0]


def test_store_that_takes_ten_seconds_gets_no_busy_loop() -> None:
    of = job(answers=[10 + n / 10 for n in range(1000)])
    of.duration_s = 10.0
    loop, steps = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock), 0
    while of.clock.monotonic_s() < 130.0:
        loop.step(of.clock.advance)
        steps += 1
    # The last one commits the last answer; until then one follows the other after half a second.
    assert of.checkpoints == pytest.approx([10 + 10.5 * n for n in range(11)], abs=0.5)
    assert steps <= 4 * len(of.checkpoints)


def test_failed_checkpoint_is_tried_again_until_one_completes() -> None:
    of = job(answers=[10.0])
    of.end = CheckpointEnd.FAILED
    played(of, 60.0)
    assert 10 <= len(of.checkpoints) <= 16
    of.end = CheckpointEnd.COMPLETE
    loops = len(of.checkpoints)
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 60.0), clock=of.clock)
    of.answers.append(61.0)
    while of.clock.monotonic_s() < 100.0:
        loop.step(of.clock.advance)
    assert len(of.checkpoints) == loops + 1


def test_first_answer_after_a_restart_is_committed_at_once() -> None:
    of = job(answers=[10.0, 10.1, 14.0])
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    of.end = CheckpointEnd.FAILED
    while len(of.checkpoints) < 3:
        loop.step(of.clock.advance)
    of.end = CheckpointEnd.RESTARTING
    while of.clock.monotonic_s() < 13.0:
        loop.step(of.clock.advance)
    of.end = CheckpointEnd.COMPLETE
    loop.step(of.clock.advance)
    assert of.checkpoints[-1] == 14.0


def test_restart_without_answers_is_followed_by_a_checkpoint() -> None:
    of = job(answers=[10.0])
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    of.end = CheckpointEnd.RESTARTING
    while not of.checkpoints:
        loop.step(of.clock.advance)
    of.end = CheckpointEnd.COMPLETE
    while of.clock.monotonic_s() < 60.0:
        loop.step(of.clock.advance)
    assert of.checkpoints == [10.0, pytest.approx(15.0, abs=0.1)]


def test_answer_waits_only_until_all_tasks_run() -> None:
    of = job(answers=[10.0])
    of.end = CheckpointEnd.STARTING
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    while of.clock.monotonic_s() < 40.0:
        loop.step(of.clock.advance)
    tries = len(of.checkpoints)
    assert of.checkpoints[:4] == pytest.approx([10.0, 10.2, 10.6, 11.4], abs=0.05)
    assert 8 < tries < 12
    of.end = CheckpointEnd.COMPLETE
    while of.clock.monotonic_s() < 60.0:
        loop.step(of.clock.advance)
    assert len(of.checkpoints) == tries + 1


def test_uncommitted_answers_are_noticed_while_checkpoints_fail() -> None:
    of = job(answers=[10.0])
    of.end = CheckpointEnd.FAILED
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0), clock=of.clock)
    seen = []
    while of.clock.monotonic_s() < 30.0:
        loop.step(of.clock.advance)
        seen.append(loop.waits)
    assert seen[-1] > len(of.checkpoints) > 3


class Broken(Job):
    error: Exception = JvmGone("gone")

    def await_answer(self, timeout_s: float) -> bool:
        raise self.error


def test_thread_ends_with_its_flink_and_reports_other_errors() -> None:
    of = Broken(ManualClock(), answers=[], reads=[])
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0))
    loop.start()
    wait_until(lambda: not any(each.name == "checkpoints" for each in threading.enumerate()))
    with pytest.raises(JvmGone):
        # The job may still run, if only this connection to its JVM broke.
        loop.check()
    loop.close()
    of.error = ValueError("odd")
    loop = CheckpointLoop(of, CheckpointSchedule(5.0, 0.0))
    loop.start()
    wait_until(lambda: not any(each.name == "checkpoints" for each in threading.enumerate()))
    with pytest.raises(ValueError, match="odd"):
        loop.check()


def test_processor_time_of_a_process_only_grows() -> None:
    before_s = processor_s(os.getpid())
    sum(range(1_000_000))
    assert 0.0 < before_s < processor_s(os.getpid())
    assert processor_s(2**22 + 1) == 0.0


seconds = st.floats(0.0, 1e4)
checkpoints = st.lists(st.tuples(seconds, seconds, st.booleans()), max_size=12)
"""Pause before each checkpoint, its duration, and whether it completed."""


def after(schedule: CheckpointSchedule, made: list[tuple[float, float, bool]]) -> CheckpointSchedule:
    now_s = schedule.begun_s
    for pause_s, duration_s, completed in made:
        begun_s = now_s + pause_s
        now_s = begun_s + duration_s
        if completed:
            schedule = schedule.completed(begun_s, now_s, duration_s / 10)
        else:
            schedule = schedule.failed(begun_s, now_s)
    return schedule


@given(st.floats(0.01, 1e4), checkpoints)
def test_waits_are_bounded_whatever_happened(most_s: float, made: list[tuple[float, float, bool]]) -> None:
    schedule = after(CheckpointSchedule(most_s, 100.0), made)
    answered_s, read_s = schedule.due_s(answered=True), schedule.due_s(answered=False)
    assert answered_s <= read_s
    last_s = schedule.begun_s if schedule.ended_s is None else schedule.ended_s
    assert read_s <= max(schedule.begun_s, last_s) + most_s
    if schedule.ended_s is not None:
        # No busy loop: also a checkpoint that takes very long is followed by a pause.
        assert answered_s >= schedule.ended_s + min(0.5, 0.5 * min(most_s, MIN_S))


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.001, 1.0)), min_size=5, max_size=5))
def test_checkpoints_keep_to_their_shares(costs: list[tuple[float, float]]) -> None:
    schedule = CheckpointSchedule(1e6, 0.0).completed(0.0, 9.0, 9.0)
    for duration_s, used_s in costs:
        schedule = schedule.completed(schedule.begun_s + 10, schedule.begun_s + 10 + duration_s, used_s)
    durations_s, processor_s_ = zip(*costs, strict=True)
    assert min(durations_s) <= TIME_SHARE * schedule.interval_s * (1 + 1e-6)
    assert sorted(processor_s_)[2] <= CORE_SHARE * schedule.interval_s * (1 + 1e-9)


def test_first_result_is_committed_at_once() -> None:
    schedule = CheckpointSchedule(5.0, 100.0)
    assert schedule.due_s(answered=True) == 100.0
    assert schedule.due_s(answered=False) == 105.0


def test_quick_checkpoints_follow_at_the_least_interval() -> None:
    schedule = after(CheckpointSchedule(5.0, 0.0), [(0.0, 2.0, True), (1.0, 0.01, True), (1.0, 0.01, True)])
    assert schedule.due_s(answered=True) == pytest.approx(schedule.begun_s + MIN_S)
    assert schedule.due_s(answered=False) == pytest.approx(schedule.begun_s + 5.0)


def test_slow_store_gets_longer_intervals_up_to_the_bound() -> None:
    slow = [(1.0, 0.3, True)] * 6
    assert after(CheckpointSchedule(5.0, 0.0), slow).interval_s == pytest.approx(1.5)
    slower = after(CheckpointSchedule(5.0, 0.0), [(1.0, 10.0, True)] * 6)
    assert slower.interval_s == 5.0
    assert slower.due_s(answered=True) == slower.ended_s + 0.5  # type: ignore[operator]


def test_one_slow_checkpoint_changes_nothing() -> None:
    made = [(1.0, 0.01, True)] * 5
    assert after(CheckpointSchedule(5.0, 0.0), [*made, (1.0, 4.0, True)]).interval_s == MIN_S


def test_each_failure_doubles_the_wait_until_one_completes() -> None:
    schedule = after(CheckpointSchedule(5.0, 0.0), [(1.0, 0.01, True)] * 3)
    waits = []
    for _ in range(7):
        schedule = schedule.failed(schedule.begun_s, schedule.begun_s)
        waits.append(schedule.interval_s)
    assert waits == pytest.approx([0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])
    assert schedule.completed(0.0, 0.01, 0.0).interval_s == MIN_S
