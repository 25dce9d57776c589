"""Sampling over the budget: by seed, from the whole window, with counts in the result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.summaries import Driven

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import SummaryPlan, Windows
from forebay.apps.summaries.program import SummaryProgram
from forebay.apps.summaries.state import KeyState
from forebay.errors import SettingError

MINUTE = 60_000
PLAN = SummaryPlan(
    Windows.tumbling(60 * MINUTE),
    chunk_tokens=200,
    partial_tokens=60,
    summary_tokens=200,
    work_tokens=24_000,
    lead_ms=MINUTE,
)


def many(count: int, length_ms: int = 60 * MINUTE) -> list[Arrival]:
    return [
        Arrival(f"e{n}", n * length_ms // count, f"user{n % 50}: line {n} of a very busy hour")
        for n in range(count)
    ]


@pytest.mark.heavy
def test_a_busy_hour_is_read_to_its_end() -> None:
    driven = Driven(SummaryProgram(PLAN), eager=0.9, restarts=False).run(many(20_000))
    (summary,) = driven.summaries
    assert summary.events == 20_000
    assert summary.summarised + summary.left_out == 20_000
    assert summary.summarised == sum(len(ask.items) for ask in driven.asked) > 100
    heard = [item.time_ms // (15 * MINUTE) for ask in driven.asked for item in ask.items]
    for quarter in range(4):
        assert heard.count(quarter) > 20
    # The last chunk of each quarter is a sample of all of it, not its first seconds.
    last = [item.time_ms for ask in driven.asked for item in ask.items if item.time_ms > 55 * MINUTE]
    assert last
    assert summary.prompt_tokens + summary.completion_tokens <= PLAN.work_tokens


@pytest.mark.heavy
def test_sample_is_determined_by_the_seed() -> None:
    def heard(seed: int) -> list[str]:
        plan = SummaryPlan(PLAN.windows, chunk_tokens=200, partial_tokens=60, work_tokens=12_000, seed=seed)
        driven = Driven(SummaryProgram(plan), restarts=False).run(many(3000))
        return [item.id for ask in driven.asked for item in ask.items]

    assert heard(1) == heard(1)
    assert heard(1) != heard(2)


@pytest.mark.heavy
@given(
    st.sampled_from(
        (
            Windows.tumbling(60 * MINUTE),
            Windows.sliding(60 * MINUTE, 15 * MINUTE),
            Windows.session(30 * MINUTE),
        )
    ),
    st.integers(1, 1200),
    st.sampled_from(("word ", "<<[[", "語", "x")),
    st.integers(1, 300),
    st.integers(0, 2**32),
)
def test_work_stays_within_its_budget(
    windows: Windows, count: int, text: str, length: int, seed: int
) -> None:
    plan = SummaryPlan(windows, chunk_tokens=200, partial_tokens=60, summary_tokens=200, work_tokens=16_000)
    events = [Arrival(f"e{n}", n * 3600_000 // count, f"{n} {text * length}") for n in range(count)]
    driven = Driven(SummaryProgram(plan), seed=seed, eager=0.9, restarts=False).run(events)
    for ask in driven.asked:
        assert sum(item.tokens for item in ask.items) <= plan.chunk_tokens
    for summary in driven.summaries:
        assert summary.prompt_tokens + summary.completion_tokens <= plan.work_tokens
        assert summary.events == summary.summarised + summary.left_out + summary.failed


@pytest.mark.heavy
def test_windows_of_very_many_panes_stay_within_their_budget() -> None:
    """A call for the window itself, and at most three for each of its panes, which are shared."""
    plan = SummaryPlan(Windows.sliding(60 * MINUTE, 2 * MINUTE))
    events = [Arrival(f"e{n}", n * 4_000, f"user{n % 50}: line {n} " + "word " * 30) for n in range(1500)]
    driven = Driven(SummaryProgram(plan), restarts=False, eager=0.9).run(events)
    assert max(each.left_out for each in driven.summaries) > 0
    for each in driven.summaries:
        assert each.prompt_tokens + each.completion_tokens <= plan.work_tokens
        assert each.calls <= 3 * 30 + 1
    with pytest.raises(SettingError, match="at least 10"):
        SummaryPlan(Windows.sliding(64 * MINUTE, 2 * MINUTE))


@pytest.mark.heavy
def test_session_that_nearly_ends_repeatedly_stays_within_its_budget() -> None:
    """For a day, each silence of forty seconds looks like its end."""
    driven = Driven(SummaryProgram(SummaryPlan(Windows.session(MINUTE))), restarts=False)
    for n in range(600):
        driven.event(Arrival(f"e{n}", n * 40_000, f"event {n} of a slow session"))
        driven.watermark(n * 40_000 + 39_000)
        while driven.answer():
            pass
    (summary,) = driven.run([]).summaries
    assert (summary.summarised, summary.left_out) == (600, 0)
    assert summary.prompt_tokens + summary.completion_tokens <= 100_000
    assert 10 < summary.calls < 60


def test_sessions_that_merge_repeatedly_stay_within_their_budget() -> None:
    driven = Driven(
        SummaryProgram(SummaryPlan(Windows.session(MINUTE))), restarts=False, out_of_order_ms=5 * MINUTE
    )
    times = [at for n in range(300) for at in (n * 90_000, n * 90_000 - 45_000)]
    events = [Arrival(f"e{n}", at, f"event {n} joins two") for n, at in enumerate(times)]
    (summary,) = driven.run(events).summaries
    assert (summary.summarised, summary.left_out) == (600, 0)
    assert summary.calls < 20


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.integers(1, 600),
    st.sampled_from((0, 5000, 3 * MINUTE, 600 * MINUTE)),
    st.sampled_from((0, -60 * MINUTE, 600 * MINUTE)),
    st.integers(0, 2**32),
)
def test_the_work_of_a_running_summary_stays_within_its_budget(
    count: int, noise_ms: int, astray_ms: int, seed: int
) -> None:
    """Even with late and far-ahead events: the budget per `every_ms` of event time."""
    every_ms = 10 * MINUTE
    plan = SummaryPlan(
        Windows.rolling(every_ms), chunk_tokens=200, partial_tokens=60, summary_tokens=200, work_tokens=16_000
    )
    driven = Driven(SummaryProgram(plan), seed=seed, restarts=False)
    spent: dict[int, int] = {}
    for n in range(count):
        now_ms = n * 60 * MINUTE // count
        time_ms = now_ms + driven.random.randint(-noise_ms, noise_ms)
        driven.watermark(now_ms)
        driven.event(
            Arrival(f"e{n}", time_ms + (astray_ms if n % 3 == 0 else 0), f"event {n} " + "word " * 9)
        )
        asked = len(driven.asked)
        while driven.answer():
            pass
        for ask in driven.asked[asked:]:
            spent[now_ms // every_ms] = spent.get(now_ms // every_ms, 0) + ask.prompt_tokens
    summary = driven.run([]).summaries[-1]
    assert summary.summarised + summary.left_out + summary.failed == count
    # A period of the budget begins anywhere.
    assert max(spent.values(), default=0) <= 2 * plan.work_tokens
    assert summary.prompt_tokens + summary.completion_tokens <= 8 * plan.work_tokens


def test_budget_without_room_for_a_chunk_is_rejected() -> None:
    with pytest.raises(SettingError, match="work_tokens"):
        SummaryPlan(Windows.tumbling(MINUTE), work_tokens=3000)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "windows", [Windows.tumbling(60 * MINUTE), Windows.session(MINUTE), Windows.rolling(10 * MINUTE)]
)
def test_key_with_many_events_and_no_answer_is_bounded(windows: Windows) -> None:
    """During a flood without answers, the state is bounded and every event is counted."""
    plan = SummaryPlan(windows)
    program, state = SummaryProgram(plan), KeyState()
    for n in range(30_000):
        arrival = Arrival(f"e{n}", n * 120, f"user{n % 50}: line {n} of a flood that does not end")
        assert program.on_event("k", state, arrival, n * 120 - 1) == []
    assert len(state.to_bytes()) < 600_000
    assert sum(pane.seen for pane in state.panes) == 30_000


@pytest.mark.heavy
def test_ten_thousand_copies_are_one_line() -> None:
    plan = SummaryPlan(Windows.tumbling(60 * MINUTE))
    events = [Arrival(f"e{n}", n, "buy now") for n in range(10_000)]
    driven = Driven(SummaryProgram(plan), restarts=False, eager=0).run(events)
    (summary,) = driven.summaries
    assert summary.events == summary.summarised == 10_000
    assert any("buy now (×10000)" in message.content for ask in driven.asked for message in ask.messages())
    assert summary.statements[0].more == 9_999


def test_megabyte_text_and_empty_texts() -> None:
    events = [Arrival("big", 1, "x" * 1_000_000), Arrival("none", 2, ""), Arrival("emoji", 3, "🎉" * 5000)]
    driven = Driven(SummaryProgram(SummaryPlan(Windows.tumbling(MINUTE)))).run(events)
    assert driven.summaries[0].events == 3
    assert driven.most_bytes < 10_000


def test_excess_windows_are_rejected_one_by_one() -> None:
    plan = SummaryPlan(Windows.tumbling(1000), panes=8)
    driven = Driven(SummaryProgram(plan), eager=0)
    for n in range(20):
        driven.event(Arrival(f"e{n}", n * 1000, f"text {n}"))
    assert {each.cause for each in driven.refused} == {"too_many_windows"}
    assert len(driven.state.panes) == 8
    assert len(driven.refused) == 12
