"""When an event may enter, when a shard polls, and when an answer may leave."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.backpressure import ANSWERS, FACTOR, FIRST_S, LONGEST_S, RoomWait
from forebay.flink.request_pool import OrderedByKey, PollInterval
from forebay.records import DeadLetter


def let_in(answers_per_s: float, lasts_s: float, *, capacity: int = 4, queued: int = 0) -> list[float]:
    """Times at which events enter an operator whose queue stays full and whose engine answers steadily.
    `queued` wait at the start.
    """
    wait, now_s, entered = RoomWait(capacity), 0.0, []
    while now_s < lasts_s:
        blocked_s = now_s
        while now_s - blocked_s < wait.most_s(now_s, int(now_s * answers_per_s), queued + len(entered)):
            now_s += 0.01
        now_s += 0.01
        entered.append(now_s)
    return entered


@pytest.mark.heavy
@pytest.mark.parametrize("answers_per_s", [20.0, 2.0, 0.3])
def test_two_events_enter_per_three_answers_on_average(answers_per_s: float) -> None:
    begin_s, end_s = 2 * ANSWERS / answers_per_s, 4 * ANSWERS / answers_per_s
    entered = [at_s for at_s in let_in(answers_per_s, end_s) if at_s >= begin_s]
    answered = (end_s - begin_s) * answers_per_s
    assert len(entered) == pytest.approx(answered / FACTOR, rel=0.25)
    assert len(entered) <= answered


@given(st.floats(0.05, 50), st.integers(1, 200))
def test_event_waits_no_longer_than_answers_take(answers_per_s: float, capacity: int) -> None:
    """At any duration: a checkpoint's barrier waits for one event."""
    entered = let_in(answers_per_s, 100, capacity=capacity)
    longest_s = max(after - before for before, after in itertools.pairwise(entered))
    assert longest_s <= FACTOR / answers_per_s + 0.1


def test_past_slow_phase_is_forgotten() -> None:
    wait = RoomWait(4)
    at_first_s = FIRST_S * FACTOR / ANSWERS
    assert wait.most_s(0, 0, 0) == pytest.approx(at_first_s)
    assert wait.most_s(3600, 0, 999) == pytest.approx(3600 * FACTOR / ANSWERS + at_first_s)
    wait.over()
    assert wait.most_s(3601, 0, 0) == pytest.approx(at_first_s)


@pytest.mark.heavy
@given(st.floats(2, 60), st.integers(2, 40))
def test_restarts_do_not_speed_up_queue_growth(run_s: float, restarts: int) -> None:
    """The engine never answers, and the job restarts repeatedly."""
    queued = 0
    for _ in range(restarts):
        queued += len(let_in(0.0, run_s, queued=queued))
    lasted_s = run_s * restarts
    assert queued <= ANSWERS / FACTOR * math.log(1 + lasted_s / FIRST_S) + 2 * restarts


def test_old_queue_blocks_only_briefly() -> None:
    assert RoomWait(4).most_s(0, 0, 10**9) == pytest.approx(LONGEST_S * FACTOR / ANSWERS)


def test_interval_for_calls_of_known_length() -> None:
    assert [PollInterval().step_ms(s) for s in (0.0, 0.05, 0.5, 2.0)] == [1, 1, 10, 25]


@given(st.floats(0, 1e6))
def test_interval_is_a_bounded_share_of_a_call(call_s: float) -> None:
    pace = PollInterval(share=0.02, least_ms=1, most_ms=25)
    step = pace.step_ms(call_s)
    assert 1 <= step <= 25
    assert step in (1, 25) or abs(step - call_s * 20) <= 0.5


@given(st.integers(0, 2**45), st.floats(0, 100))
def test_all_shards_poll_at_the_same_times(now_ms: int, call_s: float) -> None:
    pace = PollInterval()
    wake_ms, step_ms = pace.next_ms(now_ms, call_s), pace.step_ms(call_s)
    assert now_ms < wake_ms <= now_ms + step_ms
    assert wake_ms % step_ms == 0


LETTER = DeadLetter(raw=b"", cause="x", detail="")


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Calls that are accepted and finished, in any order with acceptance first."""
    keys = draw(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=30))
    waiting = [(str(i), key) for i, key in enumerate(keys)]
    in_flight: list[tuple[str, str]] = []
    steps = []
    while waiting or in_flight:
        if waiting and (not in_flight or draw(st.booleans())):
            call = waiting.pop(0)
            in_flight.append(call)
            steps.append(("accept", *call))
        else:
            call = in_flight.pop(draw(st.integers(0, len(in_flight) - 1)))
            steps.append(("finish", *call))
    return steps


def play(steps: list[tuple[str, str, str]]) -> list[str]:
    release = OrderedByKey()
    left = []
    for what, id, key in steps:
        if what == "accept":
            release.accept(id, key)
        else:
            left += [gone for gone, _ in release.finish(id, LETTER)]
    return left


@given(runs())
def test_by_key_each_answer_is_emitted_once_in_key_order(steps: list[tuple[str, str, str]]) -> None:
    accepted = [(id, key) for what, id, key in steps if what == "accept"]
    left = play(steps)
    assert sorted(left) == sorted(id for id, _ in accepted)
    for key in "abc":
        of_key = [id for id, k in accepted if k == key]
        assert [id for id in left if id in of_key] == of_key


@given(runs())
def test_by_key_an_answer_waits_only_for_earlier_ones_of_its_key(steps: list[tuple[str, str, str]]) -> None:
    release = OrderedByKey()
    unfinished: dict[str, list[str]] = {"a": [], "b": [], "c": [], "": []}
    accepted: dict[str, list[str]] = {"a": [], "b": [], "c": [], "": []}
    left: set[str] = set()
    for what, id, key in steps:
        if what == "accept":
            release.accept(id, key)
            unfinished[key].append(id)
            accepted[key].append(id)
            continue
        unfinished[key].remove(id)
        left |= {gone for gone, _ in release.finish(id, LETTER)}
        if not key:
            assert id in left
            continue
        oldest = accepted[key].index(unfinished[key][0]) if unfinished[key] else len(accepted[key])
        assert set(accepted[key][:oldest]) <= left


@given(runs())
def test_without_keys_answers_are_emitted_as_they_finish(steps: list[tuple[str, str, str]]) -> None:
    assert play([(what, id, "") for what, id, _ in steps]) == [
        id for what, id, _ in steps if what == "finish"
    ]


def test_by_key_emitted_answers_are_not_kept() -> None:
    release = OrderedByKey()
    for i in range(1000):
        release.accept(str(i), f"key {i}")
        release.finish(str(i), LETTER)
    assert [len(kept) for kept in (release._queues, release._keys, release._held)] == [0, 0, 0]
