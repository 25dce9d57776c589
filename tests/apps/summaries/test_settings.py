"""Summaries on the stateful machine: serial calls, dead letters for unusable events, any restart."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import orjson
import pytest
from benchmarks.conversations import BEGIN_MS, Window, by_window, chatter, expected_summaries
from benchmarks.tally import tally
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from forebay.apps.summaries.settings import MAX_CHAIN, SummarySpec
from forebay.errors import SettingError
from forebay.records import Request, Usage
from forebay.stateful.key_states import StateLimits
from forebay.testing.answers import answer_to, request_text, tokens
from forebay.testing.stateful import Machine

SMALL = SummarySpec(
    author="who", size_s=60.0, lead_s=5.0, chunk_tokens=200, partial_tokens=60, summary_tokens=120, fan_in=2
)
EVENTS = list(chatter(300, 1, size_s=60.0))


def answer(machine: Machine, key: str | None = None) -> None:
    """Answer one call like the fake replica."""
    key = key or next(iter(machine.calls))
    ask = machine.calls[key].ask
    assert ask.sampling is not None
    text = request_text(Request("", "", ask.messages))
    message, _ = answer_to(text, ask.schema, max_tokens=ask.sampling.max_tokens)
    machine.answer(key, orjson.loads(message), Usage(tokens(text), tokens(message)))


def fed(machine: Machine, event: dict[str, Any]) -> None:
    text = {name: event[name] for name in ("channel", "who", "text")}
    machine.event(event["channel"], event["n"], time_ms=event["at"], **text)


def lines(machine: Machine) -> list[bytes]:
    return [orjson.dumps({"answer": result.answer}) for result in machine.results]


@cache
def expected() -> dict[Window, Any]:
    return expected_summaries(EVENTS, SMALL)


@pytest.mark.heavy
@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 2**32), st.sampled_from((0.05, 0.5, 0.95)))
def test_kills_and_answer_times_do_not_change_summaries(seed: int, pace: float) -> None:
    """Nor do other steps of the watermark, like Flink's."""
    rng = random.Random(seed)
    machine = Machine(SMALL.program(event_time=True), wall_ms=BEGIN_MS + 10**9)
    for event in EVENTS:
        if rng.random() < 0.3:
            machine.pass_time(watermark_ms=event["at"] - 1)
        if rng.random() < 0.1:
            machine.restart()
        fed(machine, event)
        while machine.calls and rng.random() < pace:
            answer(machine, rng.choice(list(machine.calls)))
    machine.pass_time(watermark_ms=2**63 - 1)
    machine.end(answer)
    found = tally(by_window(expected(), whole=True), lines(machine), [])
    assert found.exact
    assert found.events == 80
    assert machine.letters == []


def test_event_missing_from_every_summary_is_a_dead_letter() -> None:
    machine = Machine(
        SummarySpec(late="side", size_s=60.0, ahead_s=3600.0).program(event_time=True), wall_ms=10**6
    )
    machine.event("k", 1, time_ms=1_000, text="in time")
    machine.pass_time(watermark_ms=61_000)
    while machine.calls:
        answer(machine)
    machine.event("k", 2, time_ms=2_000, text="late")
    machine.event("k", 3, time_ms=10**14, text="from the future")
    machine.event("k", 4, text="without a time")
    assert [letter.cause for letter in machine.letters] == ["late", "future", "no_time"]
    assert [letter.id for letter in machine.letters] == ["e2", "e3", "e4"]
    assert [result.answer["events"] for result in machine.results] == [1]
    assert machine.results[0].time_ms == 59_999


def test_events_of_an_abandoned_call_count_as_failed() -> None:
    machine = Machine(SummarySpec(size_s=60.0).program(event_time=True))
    machine.event("k", 1, time_ms=1_000, text="one")
    machine.pass_time(watermark_ms=61_000)
    while machine.calls:
        machine.give_up("k")
    (result,) = machine.results
    answer = result.answer
    assert (answer["events"], answer["failed"], answer["statements"], answer["text"]) == (1, 1, [], None)
    assert (answer["failures"], answer["failure"]) == ({"timeout": 1}, "timeout: too slow")
    assert machine.letters == []


def test_window_without_room_for_statements_still_has_a_summary() -> None:
    program = SummarySpec(window="sliding", size_s=120.0, step_s=60.0).program(event_time=True)
    machine = Machine(program, StateLimits(max_state_bytes=400))
    machine.event("k", 1, time_ms=1_000, text="one")
    machine.pass_time(watermark_ms=60_000)
    machine.answer("k", {"statements": [{"text": "x" * 400, "sources": [1]}]})
    machine.pass_time(watermark_ms=120_000)
    assert [(result.answer["events"], result.answer["failed"]) for result in machine.results] == [(1, 1)] * 2
    assert (machine.calls, machine.letters) == ({}, [])


@pytest.mark.heavy
def test_many_windows_closing_at_once_take_several_turns() -> None:
    """A turn has a limited number of calls; later turns do the rest, and nothing is lost."""
    machine = Machine(SummarySpec(size_s=60.0, ahead_s=10**6).program(event_time=True))
    for n in range(2 * MAX_CHAIN - 4):
        machine.event("k", n, time_ms=n * 60_000, text=f"window {n}")
    machine.pass_time(watermark_ms=2**63 - 1)
    machine.end(answer)
    assert [result.answer["events"] for result in machine.results] == [1] * (2 * MAX_CHAIN - 4)
    assert machine.letters == []


def test_idle_key_is_closed_by_the_clock() -> None:
    machine = Machine(SummarySpec(size_s=60.0, idle_s=30.0, late="side").program(event_time=True))
    machine.event("k", 1, time_ms=1_000, text="one")
    machine.pass_time(wall_ms=60_000, watermark_ms=900)
    while machine.calls:
        answer(machine)
    assert [result.answer["events"] for result in machine.results] == [1]
    # The window gets no second summary, although it has not ended in event time.
    machine.event("k", 2, time_ms=2_000, text="two")
    assert [letter.cause for letter in machine.letters] == ["late"]
    machine.pass_time(watermark_ms=61_000)
    assert len(machine.results) == 1
    assert list(machine.stores.keys.items()) == []


def test_key_waits_if_the_next_run_has_no_idle_time() -> None:
    machine = Machine(SummarySpec(size_s=60.0, idle_s=30.0).program(event_time=True))
    machine.event("k", 1, time_ms=1_000, text="one")
    machine.program = SummarySpec(size_s=60.0).program(event_time=True)
    machine.restart()
    machine.pass_time(wall_ms=60_000, watermark_ms=900)
    assert not machine.calls


def test_running_summary_updated_by_the_clock_continues() -> None:
    machine = Machine(SummarySpec(window="rolling", idle_s=60.0).program(event_time=True))
    machine.event("k", 0, time_ms=0, text="one")
    machine.pass_time(wall_ms=61_000, watermark_ms=1_000)
    while machine.calls:
        answer(machine)
    assert [result.answer["events"] for result in machine.results] == [1]
    for n in range(1, 50):
        machine.event("k", n, time_ms=1_000 * n, text=f"message {n}")
    assert not machine.calls
    # Nothing is open: the clock has nothing to do.
    machine.pass_time(wall_ms=200_000)
    while machine.calls:
        answer(machine)
    machine.pass_time(wall_ms=10**7)
    assert [result.answer["events"] for result in machine.results] == [1, 50]
    assert {clock for clock, _ in machine.wakes} <= {"event"}


def test_key_with_finished_windows_leaves_no_state() -> None:
    machine = Machine(SummarySpec(size_s=60.0).program(event_time=True))
    machine.event("k", 1, time_ms=1_000, text="one")
    machine.pass_time(watermark_ms=61_000)
    while machine.calls:
        answer(machine)
    assert list(machine.stores.keys.items()) == []


def test_contradicting_settings_are_rejected() -> None:
    with pytest.raises(ValidationError, match="step_ms"):
        SummarySpec(window="sliding", size_s=60, step_s=50)
    with pytest.raises(SettingError, match="event time"):
        SummarySpec().program(event_time=False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"who": "ann", "text": "hello"}, "ann: hello"),
        ({"who": None, "text": "hello"}, "hello"),
        ({"text": "hello"}, "hello"),
        ({"who": True, "text": {"a": [None, False]}}, 'true: {"a":[null,false]}'),
        ({"who": "ann", "text": None}, "ann: "),
    ],
)
def test_error_messages_have_no_python_names(said: dict[str, Any], words: str) -> None:
    program: Any = SMALL.program(event_time=True)
    assert program._message_of(said) == words
