"""The machine: serial and in order per key, each event exactly once, whatever dies in between."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.programs import AskLater, Remember

from forebay.errors import ForebayError, RecordError
from forebay.records import Event, Message, Usage
from forebay.stateful.key_states import PER_CHUNK, StateLimits, Stores
from forebay.stateful.machine import DictStore, Times
from forebay.stateful.program import Answer, Ask, Failure, Moment, Output, Program, StateVersion, Step, Timer
from forebay.stateful.shard_executor import MAX_CALLS, WAITING
from forebay.stateful.turns import unpack_turn
from forebay.testing.stateful import Machine


class Scripted(Program[Any]):
    """A function returns each step and the state."""

    def __init__(
        self,
        on_event: Callable[..., Step[Any]] | None = None,
        on_answer: Callable[..., Step[Any]] | None = None,
        on_timer: Callable[..., Step[Any]] | None = None,
    ) -> None:
        self._event = on_event
        self._answer = on_answer
        self._timer = on_timer

    def initial(self, key: str) -> Any:
        return {}

    def on_event(self, state: Any, event: Event, now: Moment) -> Step[Any]:
        return self._event(state, event, now) if self._event else Step(state)

    def on_answer(self, state: Any, tag: str, answer: Answer, now: Moment) -> Step[Any]:
        if self._answer:
            return self._answer(state, tag, answer, now)
        return super().on_answer(state, tag, answer, now)

    def on_timer(self, state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return self._timer(state, name, time_ms, now) if self._timer else Step(state)


def ask(text: str = "?", **more: Any) -> Ask:
    return Ask((Message("user", text),), **more)


def seen(machine: Machine, key: str = "a") -> list[list[int]]:
    return [r.answer["seen"] for r in machine.results if r.key == key]


def waiting(machine: Machine) -> list[bytes]:
    """Events that wait for a call of their key, in no order."""
    work = machine.stores.work.items()
    return [unpack_turn(turn).item.event.raw for name, turn in work if name.startswith(WAITING)]


def test_calls_of_a_key_are_serial_and_in_order() -> None:
    machine = Machine(Remember())
    for number in range(4):
        machine.event("a", number)
    machine.event("b", 9)
    assert {key: call.id for key, call in machine.calls.items()} == {"a": "e0", "b": "e9"}
    machine.answer("a")
    machine.answer("b")
    assert machine.calls["a"].ask.messages == (Message("user", "a: [0, 1] "),)
    machine.end()
    assert seen(machine, "a") == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [r.id for r in machine.results] == ["e0", "e9", "e1", "e2", "e3"]
    assert machine.held == {}


def test_restart_repeats_the_call_with_the_same_id_and_prompt() -> None:
    machine = Machine(Remember())
    for number in range(3):
        machine.event("a", number)
    machine.answer("a")
    before = machine.calls["a"]
    machine.restart()
    assert machine.calls["a"] == before
    assert machine.asked_again == [before]
    assert waiting(machine) == [b"2"]
    machine.end()
    assert seen(machine) == [[0], [0, 1], [0, 1, 2]]


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_each_event_exactly_once_despite_faults(data: st.DataObject) -> None:
    """Random events, answers, failures, clocks and kills, each with a restore of a random checkpoint."""
    machine = Machine(IdleEnds())
    number, saved = 0, None
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["event", "event", "answer", "fail", "time", "save", "die"])):
            case "event":
                machine.event(data.draw(st.sampled_from("abc")), number)
                number += 1
            case "answer" if machine.calls:
                machine.answer(data.draw(st.sampled_from(sorted(machine.calls))))
            case "fail" if machine.calls:
                machine.give_up(data.draw(st.sampled_from(sorted(machine.calls))))
            case "time":
                machine.pass_time(wall_ms=machine.wall_ms + data.draw(st.integers(0, 900)))
            case "save":
                saved = copy.deepcopy((machine.stores, machine.results, machine.letters, number))
            case "die":
                # Writes after the checkpoint are undone, and the input is read again.
                if saved is not None:
                    machine.stores, machine.results, machine.letters, number = copy.deepcopy(saved)
                    machine.restart()
                else:
                    machine.restart()
    machine.end()
    answered = [r.answer for r in machine.results if r.answer != "ended"]
    spoilt = [int(letter.raw) for letter in machine.letters]
    assert sorted([*answered, *spoilt]) == list(range(number))
    for key in "abc":
        of_key = [r.answer for r in machine.results if r.key == key and r.answer != "ended"]
        assert of_key == sorted(of_key)
        last = [r.answer for r in machine.results if r.key == key][-1:]
        assert last in ([], ["ended"]) or all(letter.key == key for letter in machine.letters[-1:])
    assert machine.held == {}
    assert machine.stores.work == {}
    assert machine.stores.due == {}


class IdleEnds(Remember):
    """Emits each event's number, and `ended` after half a second without one."""

    def on_answer(self, state: list[int], tag: str, answer: Answer, now: Moment) -> Step[list[int]]:
        timers = {"idle": Timer(now.wall_ms + 500, "wall")}
        return Step([*state, int(tag)], outputs=(Output(int(tag)),), timers=timers)

    def on_timer(self, state: list[int], name: str, time_ms: int, now: Moment) -> Step[list[int]]:
        return Step(None, outputs=(Output("ended"),))


def test_due_timer_waits_for_the_call_and_is_replaced_if_set_again() -> None:
    machine = Machine(IdleEnds())
    machine.event("a", 0)
    machine.answer("a")
    machine.event("a", 1)
    machine.pass_time(wall_ms=600)
    assert [r.answer for r in machine.results] == [0]
    machine.answer("a")
    assert [r.answer for r in machine.results] == [0, 1]
    machine.pass_time(wall_ms=1050)
    assert len(machine.results) == 2
    machine.pass_time(wall_ms=1100)
    assert machine.results[-1].answer == "ended"
    assert machine.results[-1].fields == {}
    assert machine.stores.keys == {}


def test_waiting_timer_differs_from_one_set_later() -> None:
    def on_event(state: Any, event: Event, now: Moment) -> Step[Any]:
        number = event.fields["n"]
        return Step({"n": number}, ask() if number < 2 else None, timers={"t": Timer(100 + number)})

    def on_timer(state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return Step(state, outputs=(Output(time_ms),))

    machine = Machine(Scripted(on_event, lambda state, *_: Step(state), on_timer))
    machine.event("a", 0)
    machine.event("a", 1)
    machine.pass_time(watermark_ms=300)
    # The timer of event 0 has fired, and waits behind event 1, which sets it again for a past time.
    machine.answer("a")
    machine.pass_time()
    machine.answer("a")
    assert [r.answer for r in machine.results] == [101]


class Restless(Program[int]):
    """Sets timers at random, also for past times; makes calls at random; emits each firing."""

    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: Event, now: Moment) -> Step[int]:
        return self._step(state, now)

    def on_answer(self, state: int, tag: str, answer: Answer, now: Moment) -> Step[int]:
        return self._step(state, now)

    def on_timer(self, state: int, name: str, time_ms: int, now: Moment) -> Step[int]:
        return replace(self._step(state, now), outputs=(Output([name, time_ms]),))

    def _step(self, state: int, now: Moment) -> Step[int]:
        dice = random.Random(f"{now.key} {now.id} {state}")
        names = dice.sample(["x", "y"], dice.randint(0, 2))
        timers = {name: Timer(dice.randint(0, 4) * 100, dice.choice(("event", "wall"))) for name in names}
        return Step(state + 1, ask() if dice.random() < 0.4 else None, timers=dict(timers))


@pytest.mark.heavy
@settings(max_examples=4 * settings.default.max_examples)
@given(st.data())
def test_no_two_turns_have_the_same_id(data: st.DataObject) -> None:
    machine = Machine(Restless())
    for number in range(data.draw(st.integers(1, 12))):
        machine.event(data.draw(st.sampled_from("ab")), number)
        if machine.calls and data.draw(st.booleans()):
            machine.answer(data.draw(st.sampled_from(sorted(machine.calls))))
        clock, at_ms = data.draw(st.sampled_from(["wall_ms", "watermark_ms"])), data.draw(st.integers(0, 5))
        for _ in range(3):
            machine.pass_time(**{clock: at_ms * 100})
        if data.draw(st.booleans()):
            machine.restart()
    machine.end(rounds=3)
    calls = [call.id for call in machine.asked]
    assert len(set(calls)) == len(calls)
    results = [result.id for result in machine.results]
    assert len(set(results)) == len(results)


def test_timer_follows_earlier_events() -> None:
    def on_event(state: Any, event: Event, now: Moment) -> Step[Any]:
        seen = {"n": [*state.get("n", []), event.fields["n"]]}
        return Step(seen, ask() if event.fields["n"] == 0 else None, timers={"close": Timer(1000)})

    def on_timer(state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return Step(None, outputs=(Output(state["n"], {"close": time_ms}, time_ms - 1),))

    machine = Machine(Scripted(on_event, lambda state, *_: Step(state), on_timer))
    for number in range(3):
        machine.event("a", number, time_ms=900 + number)
    machine.pass_time(watermark_ms=5000)
    assert machine.results == []
    # Event time must not pass the window's end before its answer has left.
    assert min(t for t in machine.held.values() if t is not None) <= 999
    machine.answer("a")
    assert [(r.answer, r.fields, r.time_ms) for r in machine.results] == [([0, 1, 2], {"close": 1000}, 999)]
    assert machine.held == {}


def test_lateness_is_judged_at_arrival_not_after_waiting() -> None:
    seen = []

    def on_event(state: Any, event: Event, now: Moment) -> Step[Any]:
        seen.append((event.fields["n"], now.watermark_ms))
        return Step(state, ask())

    machine = Machine(Scripted(on_event))
    machine.pass_time(watermark_ms=100)
    machine.event("a", 0, time_ms=150)
    machine.event("a", 1, time_ms=160)
    machine.pass_time(watermark_ms=10_000)
    machine.event("a", 2, time_ms=170)
    machine.end()
    assert seen == [(0, 100), (1, 100), (2, 10_000)]


def test_ids_and_usage_of_a_turn_with_several_calls() -> None:
    def on_answer(state: Any, tag: str, answer: Answer, now: Moment) -> Step[Any]:
        if tag == "fold":
            return Step({"folded": answer.value}, ask("turn", tag="turn"))
        return Step(state, outputs=(Output(answer.value), Output("more")))

    machine = Machine(Scripted(lambda state, event, now: Step(state, ask(tag="fold")), on_answer))
    machine.event("a", 7)
    machine.answer("a", "short", Usage(100, 10, 0))
    assert machine.calls["a"].id == "e7/2"
    machine.answer("a", "hello", Usage(20, 5, 16))
    first, second = machine.results
    assert (first.id, first.answer, first.usage, first.attempts) == ("e7", "hello", Usage(120, 15, 16), 2)
    assert (second.id, second.answer, second.usage) == ("e7/2", "more", Usage())


def test_failed_call_is_a_dead_letter_and_keeps_the_state() -> None:
    machine = Machine(Remember())
    for number in range(3):
        machine.event("a", number)
    machine.answer("a")
    machine.give_up("a", "overloaded")
    (letter,) = machine.letters
    assert (letter.raw, letter.cause, letter.attempts, letter.id) == (b"1", "overloaded", 3, "e1")
    machine.end()
    assert seen(machine) == [[0], [0, 2]]


def raises(error: Exception) -> Callable[..., Step[Any]]:
    def step(*_: Any) -> Step[Any]:
        raise error

    return step


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (raises(ZeroDivisionError("x")), "program_failed"),
        (raises(RecordError("empty text")), "bad_record"),
        (lambda *_: "no step", "program_failed"),
        (lambda *_: Step({"text": "x" * 1000}), "state_too_large"),
        (lambda *_: Step({}, outputs=(Output(object()),)), "program_failed"),
        (lambda *_: Step({}, outputs=(Output({1: 2}),)), "program_failed"),
        (lambda *_: Step({}, Ask(())), "program_failed"),
        (lambda *_: Step({}, Ask((Message("user", "\ud800"),))), "program_failed"),
        (lambda *_: Step({}, timers={"t": Timer(1, "moon")}), "program_failed"),  # type: ignore[arg-type]
        (lambda *_: Step(object()), "program_failed"),
    ],
)
@pytest.mark.parametrize("at", ["event", "answer", "timer"])
def test_invalid_program_actions_fail_their_event_only(
    step: Callable[..., Step[Any]], cause: str, at: str
) -> None:
    def on_event(state: Any, event: Event, now: Moment) -> Step[Any]:
        bad = event.fields["n"] == 1
        if at == "event" and bad:
            return step(state, event, now)
        wanted = ask() if at == "answer" else None
        timers = {"t": Timer(now.wall_ms + 100, "wall")} if at == "timer" and bad else {}
        return Step({"n": event.fields["n"]}, wanted, timers=timers)

    def on_answer(state: Any, tag: str, answer: Answer, now: Moment) -> Step[Any]:
        return step() if state["n"] == 1 else Step(state, outputs=(Output(state["n"]),))

    machine = Machine(Scripted(on_event, on_answer, step), StateLimits(max_state_bytes=500))
    for number in range(3):
        machine.event("a", number)
        while machine.calls:
            machine.answer("a")
    machine.pass_time(wall_ms=200)
    assert [(letter.cause, letter.key) for letter in machine.letters] == [(cause, "a")]
    assert machine.letters[0].raw == (b"" if at == "timer" else b"1")
    assert machine.held == {}
    machine.event("a", 3)
    assert (len(machine.calls), len(machine.letters)) == (at == "answer", 1)


class Counts(Scripted):
    """Emits failed calls."""

    def on_failure(self, state: Any, tag: str, failure: Failure, now: Moment) -> Step[Any]:
        return Step({}, outputs=(Output({"tag": tag, "cause": failure.cause, "tries": failure.attempts}),))


def test_answer_too_large_for_state_is_a_failed_call() -> None:
    machine = Machine(
        Counts(
            lambda state, event, now: Step({"n": event.fields["n"]}, ask(tag="q")),
            lambda state, tag, answer, now: Step({"text": "x" * 1000}),
        ),
        StateLimits(max_state_bytes=500),
    )
    machine.event("a", 1)
    machine.answer("a")
    assert [r.answer for r in machine.results] == [{"tag": "q", "cause": "state_too_large", "tries": 1}]
    assert (machine.letters, machine.held) == ([], {})


def test_endless_program_is_stopped() -> None:
    again = Scripted(lambda s, e, n: Step(s, ask()), lambda s, t, a, n: Step(s, ask()))
    machine = Machine(again)
    machine.event("a", 0)
    for _ in range(MAX_CALLS):
        machine.answer("a")
    assert machine.calls == {}
    assert machine.letters[0].cause == "program_failed"


def test_idle_key_expires_and_a_busy_one_does_not() -> None:
    machine = Machine(Remember(), StateLimits(ttl_s=10.0))
    machine.event("a", 0)
    machine.answer("a")
    machine.pass_time(wall_ms=9_000)
    machine.event("a", 1)
    machine.pass_time(wall_ms=25_000)
    assert "a" in machine.stores.keys
    machine.answer("a")
    machine.pass_time(wall_ms=34_900)
    assert "a" in machine.stores.keys
    machine.restart()
    machine.pass_time(wall_ms=35_100)
    assert machine.stores.keys == {}
    machine.event("a", 2)
    machine.answer("a")
    assert seen(machine)[-1] == [2]


def test_repeatedly_postponed_key_is_recorded_once() -> None:
    machine = Machine(Scripted(lambda s, e, n: Step(s, timers={"idle": Timer(n.wall_ms + 5000, "wall")})))
    for number in range(500):
        machine.wall_ms += 5
        machine.event("a", number)
    assert len(machine.wakes) == 1
    for number in range(1000):
        machine.event(f"k{number}", number)
    assert max(map(len, machine.stores.due.values())) < 64 * 8
    machine.pass_time(wall_ms=60_000)
    assert machine.stores.due == {}


def test_at_the_end_all_timers_fire_a_bounded_number_of_times() -> None:
    def again(state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return Step(state, outputs=(Output(name),), timers={"tick": Timer(time_ms + 1000, "wall")})

    first = {"later": Timer(9000), "sooner": Timer(5000, "wall")}
    machine = Machine(Scripted(lambda s, e, n: Step(s, timers=first), on_timer=again), StateLimits(ttl_s=1.0))
    machine.event("a", 0)
    machine.end(rounds=3)
    assert [r.answer for r in machine.results] == ["sooner", "later", "tick", "tick"]


class Newer(Remember):
    version = 2

    def load(self, version: int, saved: Any) -> list[int]:
        return [100 + n for n in saved] if version == 1 else super().load(version, saved)


def test_state_of_another_version_is_migrated_or_rejected() -> None:
    machine = Machine(Remember())
    machine.event("a", 0)
    machine.answer("a")
    machine.program = Newer()
    machine.restart()
    machine.event("a", 1)
    machine.answer("a")
    assert seen(machine)[-1] == [100, 1]
    machine.program = Remember()
    machine.restart()
    with pytest.raises(StateVersion, match="version 2, the program is at 1"):
        machine.event("a", 2)


def test_checkpoint_of_another_format_is_rejected() -> None:
    machine = Machine(Remember())
    machine.event("a", 0)
    name, value = next(iter(machine.stores.work.items()))
    machine.stores.work.put(name, value.replace(value[1:2], b"\x63", 1))
    with pytest.raises(ForebayError, match="format 99"):
        machine.restart()


def test_program_may_write_dead_letters() -> None:
    refused = Step({}, letter=Failure("not_a_turn", "empty"))
    machine = Machine(Scripted(lambda *_: refused))
    machine.event("a", 5)
    assert [(x.cause, x.raw) for x in machine.letters] == [("not_a_turn", b"5")]


@pytest.mark.heavy
@pytest.mark.parametrize("dies", [False, True])
def test_timers_due_at_once_fire_as_room_allows(dies: bool) -> None:
    machine, keys = Machine(AskLater(), room=4), 1000
    for n in range(keys):
        machine.event(f"k{n}", n, time_ms=0)
    machine.pass_time(watermark_ms=5_000)
    while machine.calls:
        assert len(machine.calls) < 4 + PER_CHUNK
        # Event time is held until the last of them is over, even if everything in memory is lost.
        assert machine.held
        if dies and len(machine.results) % 7 == 0:
            machine.restart()
        machine.answer(next(iter(machine.calls)))
    assert sorted(r.answer["n"] for r in machine.results) == list(range(keys))
    assert (machine.held, machine.stores.work, machine.stores.due) == ({}, {}, {})


def test_due_timer_without_room_still_precedes_a_later_event() -> None:
    machine = Machine(AskLater(), room=1)
    for n in range(2 * PER_CHUNK):
        machine.event(f"k{n}", n, time_ms=0)
    machine.pass_time(watermark_ms=5_000)
    last = f"k{2 * PER_CHUNK - 1}"
    assert last not in machine.calls
    machine.event(last, -1, time_ms=4_000)
    assert waiting(machine) == [b"-1"]
    machine.answer(last)
    assert [r.answer["n"] for r in machine.results] == [2 * PER_CHUNK - 1]
    while machine.calls:
        machine.answer(next(iter(machine.calls)))
    assert len(machine.results) == 2 * PER_CHUNK


def test_timer_rearmed_in_the_past_fires_after_all_others() -> None:
    again = Scripted(
        on_event=lambda state, event, now: Step({}, timers={"t": Timer(1_000)}),
        on_timer=lambda state, name, time_ms, now: Step(
            state, outputs=(Output(now.key),), timers={"t": Timer(1_000)}
        ),
    )
    machine = Machine(again)
    for n in range(3 * PER_CHUNK):
        machine.event(f"k{n}", n, time_ms=0)
    turns = machine.turns
    turns.mark_due("event", 1_000)
    rounds = 0
    while turns.due:
        machine._do(turns.fire(lambda: Times(0, 5_000)))
        rounds += 1
    assert rounds == 3
    assert ("event", 1_000) in machine.wakes
    assert [r.answer for r in machine.results] == [f"k{n}" for n in range(3 * PER_CHUNK)]


class Counting(DictStore):
    """Counts accesses; reading it as a whole counts each entry."""

    looks = 0

    def get(self, key: str) -> bytes | None:  # type: ignore[override]
        self.looks += 1
        return super().get(key)

    def put(self, key: str, value: bytes) -> None:
        self.looks += 1
        super().put(key, value)

    def remove(self, key: str) -> None:
        self.looks += 1
        super().remove(key)

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()


def test_state_accesses_do_not_grow_with_waiting_events() -> None:
    machine = Machine(Scripted(lambda state, event, now: Step(state, ask())))
    stores = Counting(), Counting(), Counting()
    machine.stores = Stores(*stores)
    machine.restart()

    def looks(happens: Callable[[], None]) -> int:
        before = sum(store.looks for store in stores)
        happens()
        return sum(store.looks for store in stores) - before

    machine.event("a", 0)
    events = {looks(lambda number=number: machine.event("a", number)) for number in range(1, 1000)}  # type: ignore[misc]
    answers = {looks(lambda: machine.answer("a")) for _ in range(999)}
    assert len(events) == len(answers) == 1


def test_results_of_events_found_after_a_restart_show_restored() -> None:
    """Also events that waited for their turn without a call yet."""
    machine = Machine(Remember())
    for number in (1, 2):
        machine.event("a", number)
    machine.restart()
    machine.event("a", 3)
    for _ in range(3):
        machine.answer("a")
    assert [(result.id, result.restored) for result in machine.results] == [
        ("e1", True),
        ("e2", True),
        ("e3", False),
    ]
