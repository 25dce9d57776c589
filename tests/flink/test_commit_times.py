"""The time from a result to its commit: by a task's checkpoints, and in jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flink.test_inference import Make, events, shown
from tests.harness.clock import ManualClock
from tests.harness.operators import FRESH, until_answered

from forebay.flink.commit_times import (
    LEAST_WAIT_S,
    LOOK_S,
    MAX_HELD,
    MOST_WAIT_S,
    SHARE,
    SLACK_S,
    CommitTimes,
)
from forebay.flink.metric_names import COMMIT
from forebay.testing import wait_until

if TYPE_CHECKING:
    from forebay.flink.job import RunningJob


class Checkpoints:
    """Snapshots that are complete when the test calls `complete`."""

    def __init__(self, newest: int = 0) -> None:
        self.newest = self.complete = newest

    def snapshotted(self) -> int:
        return self.newest

    def committed(self) -> int:
        return self.complete


def make_times() -> tuple[CommitTimes, Checkpoints, ManualClock]:
    checkpoints, clock = Checkpoints(), ManualClock()
    return CommitTimes(checkpoints, clock), checkpoints, clock


def answer(times: CommitTimes, clock: ManualClock, after_s: float = LOOK_S) -> None:
    clock.advance(after_s)
    times.answered()
    times.look()


def test_result_is_committed_by_the_checkpoint_after_it() -> None:
    times, checkpoints, clock = make_times()
    answer(times, clock)
    checkpoints.newest = 1
    answer(times, clock, 0.1)
    clock.advance(0.2)
    checkpoints.complete = 1
    assert times.look()
    assert times.waiting
    assert times.latency.count == 1
    assert times.latency.quantile_s(1.0) == pytest.approx(0.3, rel=0.01)
    clock.advance(0.1)
    checkpoints.newest = checkpoints.complete = 2
    assert times.look()
    assert not times.waiting
    assert times.latency.count == 2
    assert times.latency.sum_s == pytest.approx(0.6)


def test_results_of_failed_checkpoints_wait_for_the_next() -> None:
    times, checkpoints, clock = make_times()
    for checkpoints.newest in range(5):
        answer(times, clock, 1.0)
    clock.advance(1.0)
    assert not times.look()
    checkpoints.newest = checkpoints.complete = 5
    assert not times.look(), "looks are apart"
    clock.advance(1.0)
    assert times.look()
    assert (times.latency.count, times.latency.sum_s) == (5, pytest.approx(2 + 3 + 4 + 5 + 6))


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 40))
def test_memory_is_bounded_and_no_result_is_lost(bursts: list[int], snapshot_every: int) -> None:
    times, checkpoints, clock = make_times()
    left_s = []
    for number, size in enumerate(bursts):
        checkpoints.newest = number // snapshot_every
        for _ in range(size):
            answer(times, clock, 2 * LOOK_S)
            left_s.append(clock.monotonic_s())
        assert len(times._held) <= MAX_HELD
    checkpoints.newest = checkpoints.complete = len(bursts)
    clock.advance(1.0)
    assert times.look()
    assert times.latency.count == len(left_s)
    assert times.latency.sum_s == pytest.approx(sum(clock.monotonic_s() - at_s for at_s in left_s))


def test_last_result_of_a_burst_is_committed_by_the_next_checkpoint() -> None:
    times, checkpoints, clock = make_times()
    answer(times, clock)
    answer(times, clock, LOOK_S / 2)
    clock.advance(0.1)
    checkpoints.newest = checkpoints.complete = 1
    assert times.look()
    assert not times.waiting
    assert times.latency.count == 2


def test_wakes_are_few_and_soon_enough() -> None:
    times, _, clock = make_times()
    assert times.wake_after_s() is None
    answer(times, clock)
    assert times.wake_after_s() == LEAST_WAIT_S
    assert times.wake_after_s() is None, "one at a time"
    clock.advance(2.0)
    assert times.wake_after_s() == pytest.approx(2.0 * SHARE)
    clock.advance(1000.0)
    assert times.wake_after_s() == MOST_WAIT_S


def test_new_result_waits_for_no_wake_of_an_old_one() -> None:
    times, _, clock = make_times()
    answer(times, clock)
    clock.advance(1000.0)
    assert times.wake_after_s() == MOST_WAIT_S
    answer(times, clock)
    assert times.wake_after_s() == LEAST_WAIT_S


@given(st.lists(st.sampled_from([0.001, 0.005, 0.1, 1.0]), min_size=1, max_size=500))
def test_wakes_are_bounded_whatever_calls_the_operator(gaps_s: list[float]) -> None:
    times, _, clock = make_times()
    begun_s, wakes = clock.monotonic_s(), 0
    for gap_s in gaps_s:
        answer(times, clock, gap_s)
        wakes += times.wake_after_s() is not None
    assert wakes <= 1 + (clock.monotonic_s() - begun_s) / (LEAST_WAIT_S - SLACK_S)


def committed(job: RunningJob) -> int:
    return sum(int(over.sum) for _, _, over in job._metrics(lambda name: name.endswith(f"{COMMIT}.count")))


@pytest.mark.flink
def test_each_commit_is_counted_after_its_result_is_visible(make_runs: Make) -> None:
    runs = make_runs(follow=True)
    runs.feed([*events(0, 50), *events(50, 53, hold="a")])
    job = runs.start()
    wait_until(lambda: committed(job) > 0)
    wait_until(lambda: committed(job) <= len(runs.results()) == 50)
    # Nothing arrives now.
    wait_until(lambda: committed(job) == 50)
    runs.release("a")
    wait_until(lambda: committed(job) == 53)
    assert len(runs.results()) == 53
    runs.stop(job)


@pytest.mark.flink
def test_results_after_a_restore_wait_for_a_new_checkpoint(make_runs: Make) -> None:
    runs = make_runs(follow=True)
    runs.feed([*events(0, 20), *events(20, 28, hold="a")])
    job = runs.start()
    wait_until(lambda: len(runs.results()) == 20)
    runs.await_checkpoint(job)
    runs.stop(job)
    # Flink begins the first checkpoint at a random time between this pause and the interval.
    options = FRESH | {"execution.checkpointing.min-pause": "1 h"}
    job = runs.start(restore=True, checkpoint_interval_s=3600.0, options=options)
    runs.release("a")
    wait_until(lambda: shown(job, results=8, in_flight=0))
    assert committed(job) == 0
    assert until_answered(job.checkpoints).completed == 0
    runs.stop(job)
