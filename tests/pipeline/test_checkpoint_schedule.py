from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pipeline.checkpoint_loop import CORE_SHARE, MIN_S, TIME_SHARE, CheckpointSchedule

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
    for duration_s, processor_s in costs:
        schedule = schedule.completed(schedule.begun_s + 10, schedule.begun_s + 10 + duration_s, processor_s)
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
