"""The expected windows of a load are those of the summaries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.plan import SummaryPlan, Windows
from forebay.apps.summaries.program import SummaryProgram
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Summary
from forebay.bench.stream.book import Sent, key_windows, least_span_s, window_name
from forebay.stateful.program import Failure

FAR_MS = 2**41
KINDS = [
    Windows.tumbling(1000),
    Windows.sliding(3000, 1000),
    Windows.session(700),
]


def summarised(windows: Windows, events: list[Sent]) -> dict[str, int]:
    """The number of events in each summary of one key, by window."""
    program, state = SummaryProgram(SummaryPlan(windows)), KeyState()
    outputs: list[Any] = []

    def calls() -> None:
        # Answers do not matter here: an event whose call failed belongs to its window, too.
        while state.work is not None:
            outputs.extend(program.on_failure("k", state, Failure("timeout", "no answer")))

    for event in events:
        time_ms = event.due_us // 1000
        outputs += program.on_event("k", state, Arrival(event.id, time_ms, f"text {event.id}"), time_ms - 1)
        calls()
    outputs += program.on_watermark("k", state, FAR_MS)
    calls()
    assert all(isinstance(each, Summary) for each in outputs)
    return {window_name("k", each.start_ms, each.end_ms, each.revision): each.events for each in outputs}


@pytest.mark.parametrize("windows", KINDS, ids=lambda windows: windows.kind)
@given(gaps_ms=st.lists(st.integers(0, 2500), min_size=1, max_size=30))
def test_each_window_has_the_events_that_the_summaries_count(windows: Windows, gaps_ms: list[int]) -> None:
    at_ms, events = 1_700_000_000_000, []
    for number, gap_ms in enumerate(gaps_ms):
        at_ms += gap_ms
        events.append(Sent(f"e{number}", at_ms * 1000 + 999, "k"))
    found = {each.name: len(each.events) for each in key_windows(windows, events)}
    # The far watermark: sessions and windows of any time are over.
    assert found == summarised(windows, events)


def test_keys_have_windows_of_their_own_and_an_event_without_key_has_none() -> None:
    events = [Sent("e0", 0, "a"), Sent("e1", 1_000, "b"), Sent("e2", 2_000, None)]
    found = key_windows(Windows.tumbling(1000), events)
    assert [(each.key, [event.id for event in each.events]) for each in found] == [
        ("a", ["e0"]),
        ("b", ["e1"]),
    ]


def test_of_running_summaries_no_window_is_known() -> None:
    assert key_windows(Windows.rolling(1000), [Sent("e0", 0, "a")]) == []


def test_how_long_events_have_to_come() -> None:
    assert [least_span_s(each, 0.5) for each in KINDS] == [1.5, 1.5, None]
