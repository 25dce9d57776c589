"""Requests in flight resume after the clock was set back, and without another record after a restore.

Flink's own clock cannot be set: the operator's is an hour ahead of it before, and so are its timers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.harness.clock import SetClock
from tests.harness.programs import Remember

from forebay.clock import SystemClock
from forebay.flink.metric_names import OLDEST
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

pytestmark = pytest.mark.flink
HOUR_AHEAD = SetClock(3_600_000)


def test_in_flight_requests_are_sent_again_and_counted(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(follow=True, keyed=True, clock=HOUR_AHEAD)
    runs.feed({"n": n, "text": f"((hold:a)) {n}", "key": f"k{n}"} for n in range(8))
    job = runs.start(parallelism=2)
    wait_until(lambda: len(runs.calls()) == 8)
    read_ms = SystemClock().wall_ms()
    runs.await_checkpoint(job)
    runs.stop(job)
    runs.change(clock=None)
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.calls()) == 16)
    wait_until(lambda: 0 < job.counts().get(OLDEST, 0) <= read_ms / 1000)
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 8)
    runs.stop(job)
    assert sorted(result["fields"]["n"] for result in runs.results()) == list(range(8))
    assert all(result["restored"] for result in runs.results())


@pytest.mark.long
def test_event_time_stays_behind_records_of_other_shards(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(event_time=True, window_ms=1000, follow=True, keyed=True, capacity=32, clock=HOUR_AHEAD)
    runs.feed({"n": n, "text": "((hold:a))", "key": f"k{n}", "at": 500} for n in range(8))
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 8)
    runs.await_checkpoint(job)
    runs.stop(job)
    runs.change(clock=None)
    job = runs.start(restore=True)
    runs.feed({"n": n, "text": "", "key": "other", "at": n * 1000} for n in range(10, 20))
    wait_until(lambda: len(runs.seen()) == 10)
    runs.release("a")
    wait_until(lambda: len(runs.results()) >= 9)
    runs.stop(job)
    windows = {window["start"]: window["count"] for window in runs.results()}
    assert windows[0] == 8


def test_program_call_is_repeated_and_queued_events_follow(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(program=Remember(), follow=True, keyed=True, clock=HOUR_AHEAD)
    runs.feed({"n": n, "text": "((hold:a))" if n == 0 else "", "key": "k"} for n in range(3))
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 1)
    runs.await_checkpoint(job, more=2)
    runs.stop(job)
    runs.change(clock=None)
    runs.release("a")
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.results()) == 3)
    runs.stop(job)
    assert sorted(result["answer"]["seen"] for result in runs.results()) == [[0], [0, 1], [0, 1, 2]]


def test_clock_set_back_blocks_no_shard(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(follow=True, keyed=True, capacity=32)
    runs.change(clock=SetClock(3_600_000, until=runs.folder / "gates" / "back"))
    runs.feed({"n": n, "text": "((hold:a))", "key": f"k{n}"} for n in range(8))
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 8)
    runs.release("back")
    runs.release("a")
    # In one shard only something happens.
    runs.feed([{"n": 8, "text": "", "key": "k8"}])
    wait_until(lambda: len(runs.results()) == 9)
    runs.stop(job)


@pytest.mark.parametrize("program", [None, Remember()])
def test_clock_set_back_during_calls_delays_no_checkpoint(
    make_runs: Callable[..., Runs], program: Remember | None
) -> None:
    runs = make_runs(program=program, follow=True, keyed=True, capacity=32)
    # To Flink's timers, whose clock is not set, it is as if they fired an hour before their time.
    back = runs.folder / "gates" / "back"
    runs.change(clock=SetClock(0, until=back, behind_ms=3_600_000))
    runs.feed({"n": n, "text": "((hold:a))", "key": f"k{n}"} for n in range(8))
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 8)
    runs.release("back")
    runs.await_checkpoint(job, more=2)
    assert runs.results() == []
    # No record comes any more: what is answered is found all the same.
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 8)
    runs.stop(job)
