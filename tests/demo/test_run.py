"""What is said of a demo before it starts, and when its first answer is taken to be there."""

from __future__ import annotations

from forebay.demo.pace import Fit, Measured
from forebay.demo.run import _FirstAnswer, expectation
from forebay.runtime.snapshot import Snapshot

WHY = "this processor is slow"


def test_what_to_expect_is_said_and_why_where_it_is_slow() -> None:
    fast = Measured(50, 48.4, ("The power is out.", "outage"))
    said = expectation(fast, Fit(300, 32, 14.2), replayed=False, slow=WHY)
    assert "about 48 posts a second here; the first that it was asked: “The power is out.” → outage" in said
    assert "300 posts, at most 32 at a time: about 15 s, Flink's start included." in said
    assert WHY not in said
    slow = expectation(Measured(2, 0.52, ("a", "b")), Fit(60, 8, 123.0), replayed=False, slow=WHY)
    assert f"about 0.5 posts a second here ({WHY})" in slow
    assert "about 2 min" in slow
    assert "at the times of your file" in expectation(fast, Fit(300, 32, 1.0), replayed=True, slow=WHY)


def test_what_an_engine_says_cannot_touch_the_terminal() -> None:
    hostile = Measured(50, 48.4, ("a", "\x1b[31m" + "x" * 500))
    said = expectation(hostile, Fit(300, 32, 14.2), replayed=False, slow=WHY)
    assert "\x1b" not in said
    assert len(said) < 300


def test_an_engine_that_answered_nothing_is_said_to() -> None:
    said = expectation(None, Fit(60, 8, 900.0), replayed=False, slow=WHY)
    assert f"answered no question in time ({WHY})" in said
    assert "60 posts" in said


def test_the_first_answer_is_noted_once_and_all_is_passed_on() -> None:
    told: list[Snapshot] = []
    times = iter((12.0, 20.0))
    watch = _FirstAnswer(told.append, 10.0, lambda: next(times))
    snapshots = [Snapshot(float(n), "RUNNING", results=n) for n in range(3)]
    for snapshot in snapshots:
        watch(snapshot)
    assert watch.after_s == 2.0
    assert told == snapshots
