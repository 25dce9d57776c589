"""Counts of the sessions measurement, on hand-made rows."""

from __future__ import annotations

from typing import Any

from benchmarks.conversations import expected_answers, messages, rendered_again
from benchmarks.killable import KillableEngine
from benchmarks.sessions import hit_share, judged
from benchmarks.workloads import SUBJECTS, SessionsJob

from forebay.apps.sessions import FOLDING, Sessions
from forebay.records import Usage
from forebay.testing.stateful import Machine

EVENTS = list(messages(12, 3, seed=4))
SETTINGS = Sessions(budget_tokens=300, idle_s=None)


def rows() -> list[dict[str, Any]]:
    answers = expected_answers(EVENTS, SETTINGS)
    usage = {"prompt_tokens": 100, "completion_tokens": 4, "cached_tokens": 80}
    return [
        {"fields": event, "answer": answer, "usage": usage}
        for event, answer in zip(EVENTS, answers, strict=True)
    ]


def test_mistakes_are_counted() -> None:
    expected = expected_answers(EVENTS, SETTINGS)
    lost, doubled, mixed = rows(), rows(), rows()
    del lost[5]
    doubled.append(doubled[3])
    mixed[0]["answer"], mixed[3]["answer"] = mixed[3]["answer"], mixed[0]["answer"]
    assert judged(EVENTS, lost, expected)["lost"] == 1
    assert judged(EVENTS, doubled, expected)["doubled"] == 1
    assert (judged(EVENTS, mixed, expected)["disorder"], judged(EVENTS, mixed, expected)["wrong"]) == (2, 2)


def test_expected_answer_depends_on_the_whole_conversation() -> None:
    other = [dict(event) for event in EVENTS]
    other[0]["text"] += "!"
    before, after = (expected_answers(events, SETTINGS) for events in (EVENTS, other))
    changed = [n for n in range(12) if before[n] != after[n]]
    assert changed == [0, 3, 6, 9]


def test_hit_share_is_relative_to_repeated_tokens() -> None:
    full = [("x" * 100, Usage(60, 5, 0)), ("x" * 100, Usage(200, 5, 1000))]
    assert hit_share([full]) == 1.0
    none = [("x" * 100, Usage(60, 5, 0)), ("x" * 100, Usage(200, 5, 0))]
    assert hit_share([none]) == 0.0
    half = hit_share([[full[0], ("", Usage(100, 5, 50))]])
    assert half == 0.5
    assert hit_share([full[:1]]) is None


class Scripted:
    def calls(self) -> dict[str, int]:
        return {}


def test_a_recovery_run_of_sessions_folds_and_reports_a_misplaced_turn() -> None:
    subject = SUBJECTS["sessions"]
    assert isinstance(subject, SessionsJob)
    events = subject.events(1200, 1)
    machine = Machine(subject.settings.program(event_time=False))
    for event in events[::40]:
        machine.event(event["user"], event["n"], text=event["text"])
        while machine.calls:
            machine.answer("user-0", "echo:0123456789ab", Usage(20 * len(machine.asked), 4))
    assert any(call.ask.tag == FOLDING for call in machine.asked)
    engine: KillableEngine = Scripted()  # type: ignore[assignment]
    right = subject.judge(events, engine)
    answers = expected_answers(list(events), subject.settings)
    assert all(right(n, answers[n]) for n in range(1200))
    assert not right(41, answers[81])
    # Topics deal events out by their number modulo 4; those of a key stay together.
    assert all(len({e["n"] % 4 for e in events if e["user"] == user}) == 1 for user in ("user-0", "user-39"))


def test_same_seed_same_conversations() -> None:
    assert list(messages(12, 3, seed=4)) == EVENTS
    assert list(messages(12, 3, seed=5)) != EVENTS
    assert [event["user"] for event in EVENTS[:4]] == ["user-0", "user-1", "user-2", "user-0"]


def test_correct_rows_pass_in_any_order() -> None:
    figures = judged(EVENTS, reversed(rows()), expected_answers(EVENTS, SETTINGS))
    assert [figures[name] for name in ("lost", "doubled", "disorder", "wrong")] == [0, 0, 0, 0]
    assert figures["prompt_tokens"] == 1200


def test_the_baseline_changes_its_beginning_each_time() -> None:
    first, second = (rendered_again(f"It is {n}.", [("q", "a")], "r")[0].content for n in (1, 2))
    assert first[:7] != second[:7]
    assert first.endswith("User: q\nAssistant: a\nUser: r\nAssistant:")
