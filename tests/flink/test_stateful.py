"""The stateful operator in jobs on an embedded cluster: serial, in order, exactly once through kills."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.programs import AskLater, Remember

from forebay.stateful.key_states import PER_CHUNK
from forebay.testing.answers import echo
from forebay.testing.script import Fixed, Mixture
from forebay.testing.waiting import wait_until

if TYPE_CHECKING:
    from tests.harness.operators import Runs

pytestmark = pytest.mark.flink
KEYS = 6


def events(start: int, stop: int, *, hold: str | None = None) -> list[dict[str, Any]]:
    """Events `n` of `KEYS` alternating keys, 20 ms apart in event time."""
    held = f"((hold:{hold}))" if hold else ""
    return [{"n": n, "text": held, "key": f"k{n % KEYS}", "at": n * 20} for n in range(start, stop)]


@pytest.mark.slow
def test_turns_stay_exact_and_ordered_through_kill_and_rescale(make_runs: Callable[..., Runs]) -> None:
    from tests.harness.operators import kill_tree

    total = 240
    runs = make_runs(
        program=Remember(idle_ms=60_000),
        keyed=True,
        event_time=True,
        queue=4,
        delay=Mixture(((0.9, 0.01), (0.1, 0.1))),
    )
    fed = [*events(0, 60), *events(60, 66, hold="a"), *events(66, total)]
    runs.feed(fed)
    process = runs.spawn()
    # Each key has a call in flight and others waiting for it, in a checkpoint too.
    wait_until(lambda: len(runs.calls()) >= 66)
    runs.await_checkpoint_files()
    kill_tree(process)
    runs.release("a")
    runs.run(restore=True, parallelism=2)

    text: dict[str, list[list[int]]] = defaultdict(list)
    ended: dict[str, list[int]] = {}
    for result in runs.results():
        answer = result["answer"]
        if "ended" in answer:
            assert result["key"] not in ended
            ended[result["key"]] = answer["ended"]
            continue
        number = result["fields"]["n"]
        assert result["id"] == result["position"]
        assert answer["said"] == echo(f"{result['key']}: {answer['seen']} {fed[number]['text']}")
        text[result["key"]].append(answer["seen"])
    for at in range(KEYS):
        numbers = list(range(at, total, KEYS))
        # State at each turn: all earlier turns, in order.
        assert sorted(text[f"k{at}"], key=len) == [numbers[: i + 1] for i in range(len(numbers))]
        assert ended[f"k{at}"] == numbers
    assert runs.dead_letters() == []
    calls = Counter(id for id, _, _ in runs.calls())
    assert len(calls) == total
    assert any(result["restored"] for result in runs.results())


def test_timers_of_both_clocks_fire_during_input(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(
        program=Remember(idle_ms=1000, woken_ms=50),
        keyed=True,
        event_time=True,
        follow=True,
        delay=Fixed(0.01),
    )
    runs.feed(events(0, KEYS))
    job = runs.start(parallelism=2)

    def given(what: str) -> set[str]:
        return {result["key"] for result in runs.results() if what in result["answer"]}

    # Nothing comes meanwhile, and event time stands still.
    wait_until(lambda: len(given("woken")) == KEYS)
    assert given("ended") == set()
    # Event time advances with another key's events.
    runs.feed([{"n": 1000 + n, "text": "", "key": "other", "at": 5000 + n} for n in range(3)])
    wait_until(lambda: len(given("ended")) == KEYS)
    runs.stop(job)


def test_timer_in_the_past_fires_without_new_records(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(program=Remember(idle_ms=1000), keyed=True, event_time=True, follow=True)
    # The second event's turn, which sets the timer again, begins after event time has passed the timer.
    runs.feed(
        [
            {"n": 0, "text": "((hold:first))", "key": "a", "at": 0},
            {"n": 1, "text": "", "key": "a", "at": 500},
            {"n": 2, "text": "", "key": "b", "at": 60_000},
        ]
    )
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 2)
    runs.await_checkpoint(job, more=2)
    runs.release("first")
    wait_until(lambda: any("ended" in result["answer"] for result in runs.results()))
    runs.stop(job)
    ended = [result["answer"]["ended"] for result in runs.results() if "ended" in result["answer"]]
    assert ended == [[0, 1]]


@pytest.mark.long
def test_hot_key_has_a_bounded_queue_and_starves_no_other(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(program=Remember(), keyed=True, queue=4, follow=True)
    hot = [{"n": n, "text": "((hold:hot))" if n == 0 else "", "key": "hot"} for n in range(400)]
    runs.feed(hot[:50])
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == 1)
    wait_until(lambda: job.counts().get("accepted", 0) >= 5)
    # Checkpoints continue while the hot key's call is awaited and its queue is full.
    runs.await_checkpoint(job)
    assert job.counts()["accepted"] < 50
    runs.release("hot")
    runs.feed([*hot[50:], {"n": 1000, "text": "", "key": "other"}])
    wait_until(lambda: len(runs.results()) == 401)
    runs.stop(job)
    lengths = sorted(len(r["answer"]["seen"]) for r in runs.results() if r["key"] == "hot")
    assert lengths == list(range(1, 401))


@pytest.mark.long
def test_windows_downstream_count_every_answer(make_runs: Callable[..., Runs]) -> None:
    runs = make_runs(
        program=Remember(idle_ms=1),
        keyed=True,
        event_time=True,
        window_ms=1000,
        delay=Mixture(((1.0, 0.02),)),
    )
    runs.feed(events(0, 120))
    runs.run(parallelism=2)
    windows = Counter[int]()
    for window in runs.results():
        windows[window["start"]] += window["count"]
    # Every event's answer, and the ends that timers gave, each in the window of its own time.
    ends = windows.total() - 120
    assert ends >= KEYS
    assert windows[0] >= 50
    assert windows[1000] >= 50
    assert windows[2000] >= 20


@pytest.mark.long
def test_many_timers_due_at_once_fire_with_room_across_restore(make_runs: Callable[..., Runs]) -> None:
    keys, capacity = 600, 4
    runs = make_runs(
        program=AskLater(), keyed=True, event_time=True, follow=True, capacity=capacity, shards=1
    )
    fed = [{"n": n, "text": "((hold:a))", "key": f"k{n}", "at": 0} for n in range(keys)]
    runs.feed([*fed, {"n": keys, "text": "", "key": "last", "at": 60_000}])
    job = runs.start()
    wait_until(lambda: len(runs.calls()) == capacity)
    runs.await_checkpoint(job)
    wait_until(lambda: job.counts().get("in_flight") == capacity)
    assert job.counts()["pending"] <= capacity + PER_CHUNK
    runs.stop(job)
    # The rest is in the checkpoint, and no later event advances event time.
    job = runs.start(restore=True)
    wait_until(lambda: len(runs.calls()) >= 2 * capacity)
    runs.release("a")
    wait_until(lambda: len(runs.results()) >= keys)
    runs.stop(job)
    assert sorted(result["answer"]["n"] for result in runs.results()) == list(range(keys))
