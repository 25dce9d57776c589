"""Each staged problem is named on the page, and a healthy run has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.pipeline.live.history import MAX_POINTS, History, HotKey, KeyOrder, Limit, duration, tiles_of
from forebay.pipeline.snapshot import Snapshot

NOW = Snapshot(0.0, "RUNNING", in_flight=8, replicas=2, engine_p50_s=0.3, engine_p99_s=1.0)


def run(seconds: int, history: History | None = None, since_s: int = 0, **changes: Any) -> History:
    """A run of ten answers a second; functions among the changes get the second."""
    found = history or History()
    for second in range(since_s, since_s + seconds):
        values = {name: value(second) if callable(value) else value for name, value in changes.items()}
        counts = {"elapsed_s": float(second), "results": 10 * second, "read": 10 * second}
        found.add(replace(NOW, **{**counts, **values}))
    return found


def problems(history: History) -> str:
    return "\n".join(history.problems(replicas=2))


def hot(history: History, order: KeyOrder | None, *keys: str) -> str:
    found = history.hot_key(keys, order)
    assert found is None or found.text in problems_with(history, found)
    return "" if found is None else found.text


def problems_with(history: History, found: HotKey) -> str:
    return "\n".join(history.problems(found, 2))


def test_a_healthy_run_has_no_problem() -> None:
    assert problems(run(60)) == ""


def test_an_engine_that_becomes_slower_is_named() -> None:
    history = run(30, run(60), since_s=60, engine_p50_s=2.4)
    assert problems(history) == (
        "The engine has become slower: a call takes 2.4 s now (median), and took 300 ms before"
    )


def test_a_hot_key_is_named_if_others_wait_for_its_calls() -> None:
    keys = [*["ann"] * 90, *["bob"] * 10]
    busy = run(30, engine_p50_s=0.1)
    assert hot(busy, KeyOrder.CALLS, *keys) == (
        "One key is hot: 90% of the newest results have the key 'ann'. Its calls run one after another, and "
        "the events behind it wait"
    )
    assert hot(run(30, engine_p50_s=0.02), KeyOrder.CALLS, *keys) == ""
    assert hot(busy, KeyOrder.CALLS, *["ann"] * 40, *["bob"] * 40, *["cem"] * 40) == ""
    assert hot(busy, KeyOrder.CALLS, "ann", "ann") == ""
    assert hot(busy, None, *keys) == ""


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (KeyOrder.CALLS, "Its calls run"),
        (KeyOrder.RESULTS, "results leave in order"),
        (KeyOrder.SUBTASK, "One of the subtasks"),
    ],
)
@pytest.mark.parametrize(
    "waits",
    [
        {"pending": 20},
        {"source_held_back_ms": lambda second: 600 * second},
        {"backlog": TopicBacklog(70, None, None, 1.0)},
    ],
)
def test_a_key_is_hot_only_if_events_wait_and_results_leave(
    order: KeyOrder, words: str, waits: dict[str, Any]
) -> None:
    keys = ["ann"] * 50
    assert words in hot(run(30, engine_p50_s=0.1, **waits), order, *keys)
    assert hot(run(30, engine_p50_s=0.1, results=300, **waits), order, *keys) == ""
    if order is not KeyOrder.CALLS:
        assert hot(run(30, engine_p50_s=0.1), order, *keys) == ""


def limit(*keys: str, order: KeyOrder | None = KeyOrder.CALLS, **changes: Any) -> Limit | None:
    return run(60, engine_p50_s=0.1, **changes).limit(keys, order, capacity=32, subtasks=2)


def test_keys_limit_the_run_if_events_wait_for_them() -> None:
    def limited(*keys: str, **changes: Any) -> bool:
        return limit(*keys, **changes) is Limit.KEYS

    held_back: dict[str, Any] = {"source_held_back_ms": lambda second: 600 * second}
    assert limited(*["ann"] * 50)
    assert limited(**held_back)
    # One call is about to begin now and then.
    assert limited(**held_back, pending=lambda second: second % 2)
    assert not limited(**held_back, pending=20)
    assert not limited(**held_back, order=None)
    assert not limited(source_held_back_ms=lambda second: 100 * second)


@pytest.mark.parametrize("order", [KeyOrder.CALLS, None])
def test_a_full_operator_and_a_slow_sink_limit_the_run(order: KeyOrder | None) -> None:
    held_back: dict[str, Any] = {"source_held_back_ms": lambda second: 600 * second, "order": order}
    full = {**held_back, "in_flight": 64}
    assert limit(**full) is Limit.CAPACITY
    assert limit(**full, pending=20) is None
    # Of two subtasks.
    assert limit(**full, held_back_ms=lambda second: 1200 * second) is Limit.SINK
    assert limit(**full, held_back_ms=lambda second: 100 * second) is Limit.CAPACITY
    assert limit(order=order, in_flight=64) is None
    assert ("8", f"calls in flight; {Limit.SINK.value}") in tiles_of(run(9), one_each=True, limit=Limit.SINK)


def test_a_dead_replica_is_named() -> None:
    history = run(5, run(60), since_s=60, replicas=1, retries=lambda second: second - 55)
    assert problems(history).splitlines() == [
        "Only 1 of 2 replicas get requests: the others do not answer, or fail",
        "9 calls were repeated in the last 30 s: the engine failed or refused them",
    ]


def test_kafka_that_does_not_answer_is_named() -> None:
    gone = {"backlog": lambda second: TopicBacklog(70, None, None, second - 60.0), "in_flight": 0}
    history = run(30, run(60), since_s=60, **gone)
    assert problems(history) == "Kafka has not answered for 29 s: nothing is read from it, or committed to it"
    tiles = list(tiles_of(history, one_each=True))
    assert ("70", "records wait in Kafka; as of 29 s ago") in tiles
    assert ("0", "calls in flight; limited by Kafka, which does not answer") in tiles


def test_failure_of_all_records_is_named() -> None:
    lost = {"results": 0, "dead_letters": lambda second: 5 * second}
    history = run(9, failed=lambda second: {"bad_request": 5 * second}, **lost)
    (words,) = history.problems(letters="they go to topic t")
    assert words == "All of the last 40 records became dead letters (bad_request): they go to topic t"


def test_poisoned_records_are_named_with_all_causes() -> None:
    bad = {
        "results": lambda second: 590 + 5 * (second - 60),
        "dead_letters": lambda second: 5 * (second - 60),
        "failed": lambda second: {"late": 1, "json": 3 * (second - 60), "schema": 2 * (second - 60)},
    }
    history = run(60, run(60, failed={"late": 1}), since_s=60, **bad)
    assert problems(history) == (
        "150 dead letters (json 90, schema 60) in the last 30 s, 50% of all events: examples are below"
    )
    assert "all events: they go to topic t" in next(history.problems(letters="they go to topic t"))
    assert ("5/s", "results: 885") in tiles_of(history, one_each=True)


def test_failures_that_programs_handled_are_not_dead_letters() -> None:
    bad = {
        "dead_letters": lambda second: second - 60,
        "failed": lambda second: {"timeout": 2 * (second - 60)},
    }
    history = run(60, run(60, failed={}), since_s=60, **bad)
    assert next(history.problems(one_each=False)) == "30 dead letters in the last 30 s: examples are below"
    assert "30 dead letters in the last 30 s, 9% of all events" in problems(history)


def test_an_engine_that_does_not_answer_is_named() -> None:
    assert "The engine has not answered for 20 s, and 8 calls are in flight" in problems(
        run(20, run(60), since_s=60, results=590)
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "WAITING FOR THE ENGINE", "engine_failure": "no connection"}, "no connection"),
        ({"state": "WAITING FOR KAFKA", "engine_failure": "broker:9092 refuses"}, "broker:9092 refuses"),
        ({"state": "RESUMING", "resuming": "Flink was killed; resuming"}, "Flink was killed; resuming"),
        ({"state": "FAILED", "failure": "the disk is full"}, "the disk is full"),
        ({"checkpoint_failure": "No space left"}, "No space left"),
        ({"store_failure": "bucket b is gone"}, "bucket b is gone"),
        ({"suspect_times": 1}, "1 event has a time in 1970"),
        ({"gaps": ("t/0: 3 to 5",)}, "t/0: 3 to 5"),
    ],
)
def test_other_problems_are_described(changes: dict[str, Any], words: str) -> None:
    assert words in problems(run(5, **changes))


def test_after_a_restart_of_flink_the_share_of_dead_letters_is_right() -> None:
    again = {"results": lambda second: 10 * (second - 60), "dead_letters": lambda second: int(second > 62)}
    assert "1 dead letter in the last 4 s, 2% of all events" in problems(run(5, run(60), since_s=60, **again))


def test_number_of_points_is_bounded_and_spans_the_run() -> None:
    history = run(5000)
    assert MAX_POINTS // 2 <= len(history.points) <= MAX_POINTS
    assert history.points[0].elapsed_s == 0
    assert history.points[-1].elapsed_s > 4900
    assert history.points[-1].results_per_s == pytest.approx(10)


def test_rates_show_a_stop_at_once() -> None:
    history = run(11, run(60), since_s=60, results=590, read=590)
    assert history.points[-1].results_per_s == history.points[-1].read_per_s == 0
    assert ("0/s", "results: 590") in tiles_of(history, one_each=True)


def test_points_restart_after_a_wait_for_the_engine() -> None:
    history = run(30, state="WAITING FOR THE ENGINE", results=0)
    history.add(replace(NOW, elapsed_s=0.5))
    assert [point.elapsed_s for point in history.points] == [0.5]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.25, "250 ms"), (2.44, "2.4 s"), (61, "61 s"), (600, "10 min"), (7200, "2 h")]
)
def test_durations_have_a_fitting_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words
