"""The operator in jobs on an embedded cluster: DESIGN.md's contract, point by point.

Nothing here measures time: gates hold calls until the test has observed what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from forebay.flink.metric_names import WAITED
from forebay.testing.answers import echo
from forebay.testing.script import Mixture
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

    from forebay.flink.job import RunningJob

pytestmark = pytest.mark.flink
Make = Callable[..., "Runs"]


def events(start: int, stop: int, *, hold: str | None = None, keys: int = 1) -> list[dict[str, Any]]:
    """Events `n`, 20 ms apart in event time; `hold`: their calls wait for that gate."""
    held = f" ((hold:{hold}))" if hold else ""
    return [
        {"n": n, "text": f"event {n}{held}", "key": f"k{n % keys}", "at": n * 20} for n in range(start, stop)
    ]


def shown(job: RunningJob, **expected: int) -> bool:
    """Whether Flink shows these values of the operator's counters and gauges."""
    counts = job.counts()
    return {name: counts.get(name) for name in expected} == expected


def numbers(results: list[dict[str, Any]]) -> list[int]:
    return [result["fields"]["n"] for result in results]


def assert_exact(runs: Runs, total: int) -> None:
    """Each of the events 0 … total - 1 has exactly one result, the right one, under its own id."""
    results = runs.results()
    assert sorted(numbers(results)) == list(range(total))
    assert len({result["id"] for result in results}) == total
    for result in results:
        assert result["answer"] == echo(result["fields"]["text"])
        assert result["id"] == result["position"]


# 3, 6: emit, finish


def test_bounded_input_gives_one_result_per_event_before_the_end(make_runs: Make) -> None:
    # The input ends at once; 5 % of the calls are still in flight then.
    runs = make_runs(delay=Mixture(((0.95, 0.005), (0.05, 0.6))), capacity=16)
    runs.feed(events(0, 200))
    runs.run(parallelism=2)
    assert_exact(runs, 200)
    assert runs.dead_letters() == []
    assert len(runs.calls()) == 200


def test_at_end_of_input_answers_are_committed_as_they_arrive(make_runs: Make) -> None:
    runs = make_runs(keyed=True)
    runs.feed([*events(0, 4, hold="slow", keys=3), *events(4, 8, hold="fast", keys=3)])
    job = runs.start(parallelism=2)
    wait_until(lambda: len(runs.calls()) == 8)
    runs.release("fast")
    wait_until(lambda: len(runs.results()) == 4)
    # All that is committed is in a checkpoint: the rest is asked again, and nothing else.
    runs.await_checkpoint(job)
    runs.stop(job)
    job = runs.start(restore=True, parallelism=2)
    runs.release("slow")
    runs.finish(job)
    assert_exact(runs, 8)
    assert len(runs.calls()) == 12


# 3, 4: nothing waits for a slower neighbour, neither an answer nor a checkpoint


def test_held_call_delays_no_answer_or_checkpoint(make_runs: Make) -> None:
    runs = make_runs(follow=True)
    runs.feed([*events(0, 1, hold="a"), *events(1, 40)])
    job = runs.start()
    wait_until(lambda: len(runs.seen()) == 39)
    runs.await_checkpoint(job)
    wait_until(lambda: len(runs.results()) == 39)
    # Input continues too.
    runs.feed(events(40, 60))
    wait_until(lambda: len(runs.seen()) == 59)
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 60)
    runs.stop(job)
    assert_exact(runs, 60)
    assert len(runs.calls()) == 60


def test_checkpoint_does_not_wait_for_a_slot(make_runs: Make) -> None:
    # Two calls hold all slots, two events are queued.
    runs = make_runs(follow=True, capacity=2)
    runs.feed(events(0, 4, hold="a"))
    job = runs.start()
    wait_until(lambda: shown(job, accepted=4, in_flight=2, pending=2))
    runs.await_checkpoint(job)
    runs.stop(job)
    # All four are in it.
    runs.release("a")
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.results()) == 4)
    runs.stop(job)
    assert_exact(runs, 4)
    assert all(result["restored"] for result in runs.results())


# 2: bound


def test_held_calls_limit_intake_but_not_checkpoints(make_runs: Make) -> None:
    runs = make_runs(follow=True, capacity=4)
    runs.feed(events(0, 200, hold="a"))
    job = runs.start()
    wait_until(lambda: job.counts().get(WAITED, 0) >= 1.5)
    # Past twice the capacity an event waits for one look at least: 150 would be six seconds.
    assert 8 <= job.counts()["accepted"] < 150
    assert len(runs.calls()) == 4
    runs.await_checkpoint(job)
    runs.release("a")
    wait_until(lambda: len(runs.results()) == 200)
    runs.stop(job)
    assert_exact(runs, 200)
    assert len(runs.calls()) == 200


def test_job_waiting_for_a_slot_can_be_cancelled(make_runs: Make) -> None:
    runs = make_runs(follow=True, capacity=2)
    runs.feed(events(0, 40, hold="never"))
    job = runs.start()
    wait_until(lambda: job.counts().get("accepted", 0) > 4)
    runs.stop(job)


# 5: recover


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_cancelled_job_resumes_at_another_parallelism(make_runs: Make, before: int, after: int) -> None:
    # Twenty are in flight when it ends: more than the capacity of one subtask in the second run.
    runs = make_runs(follow=True, capacity=24, keyed=True, ordering="key")
    runs.feed([*events(0, 60, keys=7), *events(60, 80, hold="a", keys=7)])
    job = runs.start(parallelism=before)
    wait_until(lambda: len(runs.calls()) == 80 and len(runs.results()) == 60)
    runs.await_checkpoint(job)
    runs.stop(job)
    first = runs.calls()
    runs.change(capacity=12)
    runs.feed(events(80, 120, keys=7))
    runs.release("a")
    job = runs.start(parallelism=after, restore=True)
    wait_until(lambda: len(runs.results()) >= 120)
    runs.stop(job)

    assert_exact(runs, 120)
    results = runs.results()
    second = runs.calls()[len(first) :]
    # What was in flight is asked again under the same id; what had its answer is not.
    held = {result["id"] for result in results if 60 <= result["fields"]["n"] < 80}
    assert {result["id"] for result in results if result["restored"]} == held
    assert {id for id, _, _ in first} & {id for id, _, _ in second} == held
    assert max(in_flight for _, in_flight, _ in second) <= 12
    for key in {result["key"] for result in results}:
        mine = [n for n in numbers(results) if f"k{n % 7}" == key]
        assert mine == sorted(mine)


def test_killed_jvm_loses_and_duplicates_nothing(make_runs: Make) -> None:
    from tests.harness.operators import kill_tree

    runs = make_runs(delay=Mixture(((0.9, 0.01), (0.1, 0.3))), capacity=12)
    runs.feed([*events(0, 300), *events(300, 310, hold="a"), *events(310, 400)])
    process = runs.spawn()
    # The last are in flight when it dies, some results are committed and some are not. One that came after
    # those that are held was committed by a checkpoint that has them in flight.
    wait_until(lambda: len(runs.calls()) >= 330 and max(numbers(runs.results()), default=0) >= 310)
    kill_tree(process)
    assert len(runs.results()) < 400
    first = runs.calls()
    runs.release("a")
    runs.run(restore=True)
    assert_exact(runs, 400)
    twice = {id for id, n in Counter(id for id, _, _ in runs.calls()).items() if n > 1}
    before = {id for id, _, _ in first}
    restored = {result["id"] for result in runs.results() if result["restored"]}
    assert before >= twice
    # Some were accepted before the kill and waited for a slot: those are asked for the first time.
    assert restored & before <= twice
    assert restored & before


def test_failed_task_restarts_in_the_jvm_with_exact_output(make_runs: Make) -> None:
    from forebay.flink.environment import Restart

    runs = make_runs(follow=True)
    runs.feed([*events(0, 50), *events(50, 55, hold="a")])
    job = runs.start(restart=Restart(attempts=100, delay_s=0.1))
    wait_until(lambda: len(runs.calls()) == 55 and len(runs.results()) == 50)
    runs.await_checkpoint(job)
    runs.feed([{"n": 55, "text": "event 55 ((defect:mended))"}])
    wait_until(lambda: job.restarts() >= 1)
    runs.release("mended")
    # The five are asked again though no further event comes.
    wait_until(lambda: len(runs.calls()) >= 61)
    runs.release("a")
    wait_until(lambda: len(runs.results()) >= 56)
    runs.feed(events(56, 80))
    wait_until(lambda: len(runs.results()) >= 80)
    runs.stop(job)
    assert_exact(runs, 80)


@pytest.mark.long
def test_in_flight_requests_resume_without_new_records(make_runs: Make) -> None:
    from tests.harness.operators import kill_tree

    runs = make_runs(follow=True)
    runs.feed(events(0, 1, hold="a"))
    process = runs.spawn()
    wait_until(lambda: len(runs.calls()) == 1)
    runs.await_checkpoint_files()
    kill_tree(process)
    runs.release("a")
    # Only the timer of its shard is there to wake it.
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.results()) == 1)
    runs.stop(job)
    assert_exact(runs, 1)


# 7: event time


@pytest.mark.long
def test_windows_behind_slow_calls_drop_nothing_across_restore(make_runs: Make) -> None:
    slow = Mixture(((0.95, 0.003), (0.05, 0.25)))
    runs = make_runs(event_time=True, window_ms=1000, follow=True, capacity=16, delay=slow)
    runs.feed([*events(0, 500), *events(500, 504, hold="a")])
    job = runs.start(parallelism=2)
    # Ten windows end before the first event that is held; the eleventh must stay open.
    wait_until(lambda: len(runs.results()) >= 9)
    wait_until(lambda: len(runs.seen()) >= 500)
    runs.await_checkpoint(job)
    assert all(window["start"] < 10_000 for window in runs.results())
    runs.stop(job)
    runs.feed(events(504, 1000))
    runs.release("a")
    job = runs.start(parallelism=2, restore=True)
    wait_until(lambda: len(runs.results()) >= 19)
    runs.stop(job)
    windows = {window["start"]: window["count"] for window in runs.results()}
    assert len(windows) == len(runs.results())
    assert {start: windows[start] for start in range(0, 19_000, 1000)} == dict.fromkeys(
        range(0, 19_000, 1000), 50
    )


def test_event_time_advances_without_results(make_runs: Make) -> None:
    runs = make_runs(event_time=True, window_ms=1000, follow=True)
    runs.feed(events(0, 150))
    job = runs.start(parallelism=2)
    wait_until(lambda: len(runs.seen()) == 150)
    # The next event is much later, and its answer does not arrive: only the operator itself can advance
    # event time.
    runs.feed(events(500, 501, hold="a"))
    wait_until(lambda: len(runs.results()) == 3)
    assert runs.seen()[150:] == []
    runs.stop(job)
    assert [window["count"] for window in runs.results()] == [50, 50, 50]


# 8: fail well; tests/test_bad_input.py has the dead letters


def test_engine_defect_fails_the_job_and_loses_nothing(make_runs: Make) -> None:
    from forebay.flink.environment import Restart

    runs = make_runs()
    runs.feed([*events(0, 20), {"n": 20, "text": "((defect))"}])
    job = runs.start(restart=Restart(attempts=0))
    wait_until(lambda: job.ended() is not None)
    assert "failed unexpectedly" in (job.ended() or "")
    assert len(runs.results()) < 21


# metrics


def test_flink_shows_the_operator_counts(make_runs: Make) -> None:
    from forebay.flink.metric_names import CALL_P50, CALL_P99, EVENT_P50, EVENT_P99
    from forebay.flink.metrics import GAUGES

    runs = make_runs(follow=True)
    runs.feed([*events(0, 50), {"n": 50, "text": "((fault:400))"}, *events(51, 53, hold="a")])
    job = runs.start()
    wait_until(lambda: shown(job, accepted=53, results=50, dead_letters=1, calls=53, in_flight=2, pending=0))
    # Flink may look between two numbers of one flush.
    wait_until(lambda: job.counts()[EVENT_P99] > 0)
    counts = job.counts()
    assert set(GAUGES) <= set(counts)
    assert 0.005 <= counts[CALL_P50] <= counts[CALL_P99] < 60
    assert counts[CALL_P50] <= counts[EVENT_P50] <= counts[EVENT_P99]
    assert counts["completion_tokens"] > 0
    runs.release("a")
    wait_until(lambda: shown(job, results=52, dead_letters=1, calls=53, in_flight=0))
    runs.stop(job)
