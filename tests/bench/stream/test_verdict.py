"""Reasons why a run is INVALID."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.bench.stream.simulated_queue import SimulatedQueue
from tests.bench.stream.stream_runs import STAGES_S, even, event, lost, stream_run

from forebay.bench.stream.records import EventRecord, MeasuredCheckpoint
from forebay.bench.stream.verdict import judge_stream


def late(events: list[EventRecord], count: int, by_s: float) -> list[EventRecord]:
    return [
        replace(each, emitted_s=(each.free_s or 0.0) + by_s) if each.index < count else each
        for each in events
    ]


def slower(index: int) -> tuple[float, ...]:
    """Of ten events per second, eight are answered."""
    return (0.001, 0.002, 0.003, 0.01, 0.1 + index / 8 - index / 10, 0.2, 0.001, 0.5)


def test_a_good_run_is_valid() -> None:
    verdict = judge_stream(stream_run(even(1000), others_cores=0.1, cores=2))
    assert verdict.reasons == ()
    assert verdict.valid
    assert verdict.schedule_delay_p99_s == pytest.approx(0.001)
    assert "schedule delay: p99 1 ms" in verdict.notes[0]
    assert not any("other programs" in note for note in verdict.notes)


def test_share_of_other_processes_is_unknown_after_a_lost_process() -> None:
    assert "processor use of other programs is unknown" in judge_stream(stream_run(even(9))).notes[-1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"events": tuple(late(even(200), 3, 0.02))}, "the feed could not keep its schedule: 3 of 200"),
        ({"events": (*even(199), lost(199, 19.9))}, "1 of 200 events have neither a result nor a dead"),
        (
            {"events": (*even(199), event(199, 19.9, results=2))},
            "1 of 200 events have more than one result or dead letter",
        ),
        ({"events": tuple(even(200, journaled=True))}, "200 of 200 events were answered by the journal"),
        ({"strangers": 2}, "2 results belong to none of the events"),
        ({"complete": False}, "interrupted"),
        ({"complete": False, "failure": "status 1"}, "the pipeline ended before its events: status 1"),
        ({"others_cores": 0.5, "cores": 2}, "other programs kept 0.50 of 2 cores busy"),
        (
            {"events": (*even(199), event(199, 19.9, read_s=19.8))},
            "the clocks disagree: read_s was 101 ms before emitted_s",
        ),
        (
            {"events": tuple(event(n, n / 10, emitted_s=n / 10 * 1.05) for n in range(200))},
            "events came at 9.57",
        ),
        (
            {"events": tuple(event(n, n / 10, slower(n)) for n in range(400))},
            "no steady state: the events that were due and not answered grew by",
        ),
    ],
)
def test_problems_are_reported(changes: dict[str, Any], reason: str) -> None:
    verdict = judge_stream(stream_run(**{"events": even(200), **changes}))
    assert any(each.startswith(reason) for each in verdict.reasons), verdict.reasons
    assert not verdict.valid


def test_a_commit_may_be_early_by_the_resolution_of_the_file_clock() -> None:
    events = [event(n, n / 10, (0.001, 0.002, 0.003, 0.01, 0.1, 0.2, 0.001, -0.003)) for n in range(200)]
    assert judge_stream(stream_run(events, resolution_s=0.004)).valid
    assert not judge_stream(stream_run(events, resolution_s=0.001)).valid


def test_events_late_because_the_pipeline_was_down_do_not_blame_the_feed() -> None:
    events = [
        event(n, n / 10, (max(0.0, 5.0 - n / 10) + 0.001, *STAGES_S[1:]), free_s=max(n / 10, 5.0))
        for n in range(100)
    ]
    assert judge_stream(stream_run(events)).valid


def test_dead_letters_are_not_a_growing_lag() -> None:
    events = [lost(n, n / 10, error="too_long") if n % 4 == 0 else event(n, n / 10) for n in range(400)]
    assert judge_stream(stream_run(events)).valid


def test_a_run_that_is_too_short_for_its_answers_shows_it() -> None:
    events = even(80, 4.0, stages_s=(0.001, 0.002, 0.003, 0.01, 6.0, 0.2, 0.001, 0.5))
    verdict = judge_stream(stream_run(events))
    assert verdict.valid
    assert any("19.8 s are too short to judge" in note and "--seconds 69 " in note for note in verdict.notes)


def test_a_run_whose_lag_scatters_too_much_shows_it() -> None:
    queue = SimulatedQueue(16, Random(3))
    notes = judge_stream(queue.measure(queue.load(15.0))).notes
    (note,) = (note for note in notes if "whether the lag grows was not checked" in note)
    assert "the growth of the lag is known to ±" in note
    assert not any(
        "not checked" in note for note in judge_stream(queue.measure(queue.load(15.0, 0, 16))).notes
    )


def test_few_events_leave_the_lag_unchecked_and_show_it() -> None:
    assert any("49 events are too few to judge" in note for note in judge_stream(stream_run(even(49))).notes)
    assert not any("too few" in note for note in judge_stream(stream_run(even(50))).notes)


def test_uncommitted_results_differ_from_lost_ones() -> None:
    events = [*even(199), lost(199, 19.9)]
    early, late = MeasuredCheckpoint(1, 5.0, 0.1, 1, 1), MeasuredCheckpoint(2, 25.0, 0.1, 1, 1)
    for checkpoints, told in (((early,), True), ((early, late), False)):
        (reason,) = judge_stream(stream_run(events, checkpoints=checkpoints)).reasons
        assert reason.startswith("1 of 200 events have neither a result nor a dead letter")
        assert ("answered but not committed" in reason) == told


def test_few_events_give_no_p99() -> None:
    verdict = judge_stream(stream_run(even(200)))
    assert verdict.schedule_delay_p99_s is None
    assert "a p99 needs 1,000 events, and 200 came" in verdict.notes[0]


def _notes(**changes: Any) -> tuple[str, ...]:
    return judge_stream(stream_run(even(200), **changes)).notes


def test_events_that_were_sent_before_are_reported() -> None:
    assert any("20 of 200 events were sent before" in note for note in _notes(resent=20))
    assert not any("sent before" in note for note in _notes())


def test_a_ramp_may_grow() -> None:
    events = tuple(event(n, n / 10, slower(n)) for n in range(400))
    asked = {"schedule": {"kind": "ramp"}}
    assert judge_stream(stream_run(events, asked=asked)).valid
