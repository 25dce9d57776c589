"""How long an event waits for room: the queue shrinks while answers arrive, and an outage lets little in."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.request_pool import ANSWERS, FACTOR, FIRST_S, LONGEST_S, RoomWait


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
