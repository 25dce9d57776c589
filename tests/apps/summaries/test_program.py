"""Every event is in exactly one call of its window, whatever the windows, answers and restarts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness.summaries import END_MS, Driven

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import SummaryPlan, Windows
from forebay.apps.summaries.program import TOO_LONG, SummaryProgram
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Statement, Summary
from forebay.errors import SettingError
from forebay.records import Usage

SECOND = 1000
WINDOWS = (
    Windows.tumbling(60 * SECOND),
    Windows.sliding(120 * SECOND, 30 * SECOND),
    Windows.session(20 * SECOND, 600 * SECOND),
    Windows.rolling(30 * SECOND),
)


def plan_of(windows: Windows, **changes: object) -> SummaryPlan:
    small: dict[str, object] = {
        "chunk_tokens": 200,
        "partial_tokens": 60,
        "summary_tokens": 200,
        "work_tokens": 10_000_000,
        "lead_ms": 5 * SECOND,
        "late": "side",
    }
    return SummaryPlan(windows, **{**small, **changes})


def events_at(times: list[int]) -> list[Arrival]:
    return [
        Arrival(f"e{n}", time, f"word{n} speaks of thing{n % 7} at {time}") for n, time in enumerate(times)
    ]


steps = st.lists(st.integers(0, 9 * SECOND), max_size=120)
shuffles = st.lists(st.integers(-3 * SECOND, 3 * SECOND), min_size=120, max_size=120)


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.sampled_from(WINDOWS),
    steps,
    shuffles,
    st.integers(0, 2**32),
    st.tuples(st.sampled_from((0.0, 0.3)), st.sampled_from((0.0, 0.2, 0.9))),
)
def test_each_event_is_in_one_call_of_its_window(
    windows: Windows, gaps: list[int], noise: list[int], seed: int, pace: tuple[float, float]
) -> None:
    failing, eager = pace
    times, now = [], 10_000_000
    for gap, shift in zip(gaps, noise, strict=False):
        now += gap
        times.append(now + shift)
    driven = Driven(
        SummaryProgram(plan_of(windows)),
        seed=seed,
        failing=failing,
        eager=eager,
        out_of_order_ms=6 * SECOND,
    ).run(events_at(times))
    assert not driven.refused
    # In one call each, and no event twice in any.
    called = Counter(item.id for ask in driven.asked for item in ask.items)
    assert called == Counter(f"e{n}" for n in range(len(times)))
    for ask in driven.asked:
        assert [item.time_ms for item in ask.items] == sorted(item.time_ms for item in ask.items)
        assert sum(item.tokens for item in ask.items) <= 200
    check_counts(driven.summaries, windows, times)
    assert driven.state.work is None
    assert windows.kind == "rolling" or not driven.state.panes
    for summary in driven.summaries:
        assert sum(each.tokens for each in summary.statements) <= 200
        for statement in summary.statements:
            check_sources(statement, summary, times)


def check_counts(summaries: list[Summary], windows: Windows, times: list[int]) -> None:
    if windows.kind == "rolling":
        assert (summaries[-1].events if summaries else 0) == len(times)
        assert [each.revision for each in summaries] == list(range(len(summaries)))
        return
    for each in summaries:
        inside = sum(each.start_ms <= time < each.end_ms for time in times)
        assert each.events == inside == each.summarised + each.failed
    found = [(each.start_ms, each.end_ms) for each in summaries]
    assert found == sorted(set(found))
    if windows.size_ms:
        wanted = {
            end
            for time in times
            for end in range(
                time // windows.step_ms * windows.step_ms + windows.step_ms,
                time // windows.step_ms * windows.step_ms + windows.size_ms + 1,
                windows.step_ms,
            )
        }
        assert {end for _, end in found} == wanted
    else:
        assert sum(each.events for each in summaries) == len(times)
        assert all(later.start_ms >= earlier.end_ms for earlier, later in pairwise(summaries))


def check_sources(statement: Statement, summary: Summary, times: list[int]) -> None:
    assert statement.sources
    for source in statement.sources:
        assert source.time_ms == times[int(source.id[1:])]
        assert summary.start_ms <= source.time_ms <= summary.end_ms


@given(steps, st.integers(0, 2**32), st.integers(0, 2**32))
def test_results_do_not_depend_on_call_times(gaps: list[int], one: int, other: int) -> None:
    times = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    runs = [
        Driven(SummaryProgram(plan_of(WINDOWS[0])), seed=seed, eager=eager, out_of_order_ms=0)
        for seed, eager in ((one, 0.1), (other, 0.9))
    ]
    first, second = (run.run(events_at(times)).summaries for run in runs)
    assert first == second


@pytest.mark.heavy
def test_little_work_is_left_at_the_close() -> None:
    """A thousand events in a window: a tree of bounded calls, and a close with the last few events."""
    times = [n * 59 for n in range(1000)]
    driven = Driven(SummaryProgram(plan_of(WINDOWS[0])), eager=0.95).run(events_at(times))
    close = driven.asked[-1]
    assert close.kind == "close"
    assert len(close.items) < 12
    assert len(close.statements) <= 3 * 4 * 60 // 10
    assert Counter(ask.kind for ask in driven.asked)["merge"] > 10
    assert max(ask.prompt_tokens for ask in driven.asked) < 1000
    (summary,) = driven.summaries
    assert summary.calls == len(driven.asked)


def test_window_whose_statements_fit_needs_no_closing_call() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[0])))
    for event in events_at([1000, 2000]):
        driven.event(event)
    driven.watermark(56 * SECOND)
    assert [ask.kind for ask in driven.asked] == []
    assert driven.answer()
    assert [ask.kind for ask in driven.asked] == ["chunk"]
    driven.watermark(60 * SECOND)
    assert len(driven.summaries) == 1
    assert not driven.answer()


@pytest.mark.heavy
def test_sliding_windows_share_the_work_of_their_panes() -> None:
    times = [n * SECOND for n in range(600)]
    driven = Driven(SummaryProgram(plan_of(WINDOWS[1])), eager=0.9).run(events_at(times))
    called = Counter(item.id for ask in driven.asked for item in ask.items)
    assert set(called.values()) == {1}
    assert len(driven.summaries) == 23
    assert {each.events for each in driven.summaries} == {30, 60, 90, 120}


@pytest.mark.parametrize("late", ["next", "side", "correct"])
def test_a_late_event_follows_the_policy(late: str) -> None:
    program = SummaryProgram(plan_of(WINDOWS[0], late=late, allowed_ms=100 * SECOND, correct_ms=10 * SECOND))
    driven = Driven(program)
    for event in events_at([1000, 2000, 3000]):
        driven.event(event)
    driven.watermark(61 * SECOND)
    while driven.answer():
        pass
    driven.event(Arrival("late", 4000, "I come late"))
    driven.watermark(80 * SECOND)
    while driven.answer():
        pass
    driven.event(Arrival("e9", 81_000, "later still"))
    driven.watermark(END_MS)
    while driven.answer():
        pass
    kinds = [(each.start_ms, each.revision, each.events, each.late) for each in driven.summaries]
    if late == "next":
        assert kinds == [(0, 0, 3, 0), (60_000, 0, 2, 1)]
        assert any("(late)" in message.content for ask in driven.asked for message in ask.messages())
    elif late == "side":
        assert [each.id for each in driven.refused] == ["late"]
        assert kinds == [(0, 0, 3, 0), (60_000, 0, 1, 0)]
    else:
        assert kinds == [(0, 0, 3, 0), (0, 1, 4, 1), (60_000, 0, 1, 0)]
        assert any(source.id == "late" for s in driven.summaries[1].statements for source in s.sources)
    assert not driven.state.panes


def test_joined_sessions_merge_but_their_chunks_stay_separate() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[2])), eager=0, out_of_order_ms=60 * SECOND)
    times = [*range(0, 8000, 1000), *range(30_000, 38_000, 1000), 18_000]
    (summary,) = driven.run(events_at(times)).summaries
    assert (summary.start_ms, summary.end_ms, summary.events) == (0, 57_000, 17)
    assert sum(len(ask.items) for ask in driven.asked) == 17
    assert all(sum(item.tokens for item in ask.items) <= 200 for ask in driven.asked)


def test_late_event_does_not_extend_its_session() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[2], late="next")))
    driven.event(Arrival("a", 0, "first"))
    driven.watermark(100 * SECOND)
    driven.event(Arrival("late", 1000, "late"))
    driven.event(Arrival("b", 101 * SECOND, "second"))
    driven.watermark(END_MS)
    while driven.answer():
        pass
    spans = [(each.start_ms, each.end_ms, each.events, each.late) for each in driven.summaries]
    assert spans == [(0, 20_000, 1, 0), (100_001, 121_000, 2, 1)]


@given(
    st.lists(st.integers(0, 300 * SECOND), max_size=120),
    st.sampled_from(("next", "side", "correct")),
    st.sampled_from((WINDOWS[0], WINDOWS[2])),
    st.integers(0, 2**32),
)
# A late event at the very start of its window.
@example([0, 0, 60 * SECOND, 0], "correct", WINDOWS[0], 0)
def test_no_late_event_is_lost(times: list[int], late: str, windows: Windows, seed: int) -> None:
    program = SummaryProgram(plan_of(windows, late=late, allowed_ms=60 * SECOND, correct_ms=9 * SECOND))
    driven = Driven(program, seed=seed).run(events_at(times))
    called = Counter(item.id for ask in driven.asked for item in ask.items)
    refused = Counter(each.id for each in driven.refused)
    assert called + refused == Counter(f"e{n}" for n in range(len(times)))
    assert all(sum(item.tokens for item in ask.items) <= 200 for ask in driven.asked)
    last = {(each.start_ms, each.end_ms): each for each in driven.summaries}
    assert sum(each.events for each in last.values()) == len(times) - sum(refused.values())
    assert not driven.state.panes


def test_statements_dropped_from_a_partial_summary_are_counted() -> None:
    program, state = SummaryProgram(plan_of(WINDOWS[0])), KeyState()
    for event in events_at([0, 1000]):
        program.on_event("k", state, event, None)
    program.on_watermark("k", state, 56 * SECOND)
    long = {"text": " ".join(f"word{n}" for n in range(30)), "sources": [1]}
    program.on_answer("k", state, {"statements": [{"text": "short", "sources": [2]}, long]}, Usage())
    (summary,) = program.on_watermark("k", state, 60 * SECOND)
    assert isinstance(summary, Summary)
    assert (len(summary.statements), summary.cut) == (1, 1)


def test_window_whose_statements_do_not_fit_names_the_cause() -> None:
    program, state = SummaryProgram(plan_of(WINDOWS[0])), KeyState()
    program.on_event("k", state, Arrival("a", 0, "hello"), None)
    program.on_watermark("k", state, 56 * SECOND)
    long = {"text": " ".join(f"word{n}" for n in range(35)), "sources": [1]}
    program.on_answer("k", state, {"statements": [long]}, Usage())
    (summary,) = program.on_watermark("k", state, 60 * SECOND)
    assert isinstance(summary, Summary)
    assert (summary.statements, summary.summarised, summary.cut) == ((), 1, 1)
    assert (summary.failure, summary.faithful) == (TOO_LONG, None)


def test_events_of_a_failed_call_are_excluded_as_a_whole() -> None:
    long = Arrival("a", 0, " ".join(f"word{n}" for n in range(1000)))
    found = [
        Driven(SummaryProgram(plan_of(WINDOWS[0])), failing=failing).run([long]) for failing in (0.0, 1.0)
    ]
    assert [(one.failed, one.clipped) for driven in found for one in driven.summaries] == [(0, 1), (1, 0)]


def test_late_events_of_a_running_summary_share_a_call() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[3], chunk_tokens=2400)))
    driven.event(Arrival("a", 0, "first"))
    driven.watermark(3600 * SECOND)
    for n in range(50):
        driven.event(Arrival(f"late{n}", n * SECOND, f"late {n}"))
        while driven.answer():
            pass
    driven.watermark(3630 * SECOND)
    while driven.answer():
        pass
    assert [len(ask.items) for ask in driven.asked] == [1, 50]


def test_future_event_does_not_delay_a_running_summary() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[3])))
    driven.event(Arrival("ahead", 7200 * SECOND, "tomorrow"))
    driven.event(Arrival("now", 0, "today"))
    driven.watermark(30 * SECOND)
    while driven.answer():
        pass
    assert [len(ask.items) for ask in driven.asked] == [2]


@pytest.mark.heavy
def test_windows_kept_for_corrections_leave_room_for_open_ones() -> None:
    plan = plan_of(Windows.tumbling(30 * SECOND), late="correct", allowed_ms=1920 * SECOND)
    times = [n * 30 * SECOND for n in range(200)]
    driven = Driven(SummaryProgram(plan), eager=0.9).run(events_at(times))
    assert driven.refused == []
    assert [each.events for each in driven.summaries] == [1] * 200
    with pytest.raises(SettingError, match="allowed_ms must be at most the length of 64 windows"):
        plan_of(Windows.tumbling(30 * SECOND), late="correct", allowed_ms=1921 * SECOND)


def test_events_without_a_time_or_far_ahead_are_rejected() -> None:
    driven = Driven(SummaryProgram(plan_of(WINDOWS[0], ahead_ms=3600 * SECOND)), wall_ms=10**9)
    driven.event(Arrival("a", 1000, "fine"))
    driven.watermark(2000)
    driven.event(Arrival("b", None, "no time"))
    driven.event(Arrival("c", 10**15, "from the year 33658"))
    driven.event(Arrival("d", 10**9, "after a silence of eleven days"))
    assert [(each.id, each.cause) for each in driven.refused] == [("b", "no_time"), ("c", "future")]
