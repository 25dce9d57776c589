"""The ceiling of a key and day: never exceeded, and exact whatever dies in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.programs import Remember

from forebay.codec import encode
from forebay.records import DeadLetter, Event, KeyedEvent, Message, Result, Usage
from forebay.stateful.budget import DAY, DAY_MS, MAX_WAITING, SPENT, BudgetedMachines, Ledger
from forebay.stateful.key_states import StateLimits
from forebay.stateful.machine import (
    CountFailure,
    DictStore,
    Effect,
    Emit,
    OpenMachines,
    StartCall,
    Times,
    stateless,
)
from forebay.stateful.program import Answer, Ask, Failure, Moment, Output, Program, Step
from forebay.stateful.shard_executor import ProgramMachines

CEILING, MOST = 100, 30


class Shard:
    """A shard with a budget, as the operator runs it. `paid`: costs of what was emitted, by key and day."""

    def __init__(self, machines: OpenMachines = stateless) -> None:
        self.machines = machines
        self.ceiling = CEILING
        self.most: Callable[[KeyedEvent], int] = lambda item: MOST
        self.stores: dict[str, DictStore] = {}
        self.now_ms = 20_000 * DAY_MS
        self.accepted = 0
        self.results: list[Result] = []
        self.letters: list[DeadLetter] = []
        self.failures: list[str] = []
        self.paid: Counter[tuple[str, int]] = Counter()
        self.restart()

    def restart(self) -> None:
        """Lose everything that is not in the stores."""
        open_machines = BudgetedMachines(self.machines, self.ceiling, self.most)
        self.machine = open_machines(lambda name: self.stores.setdefault(name, DictStore()))()
        self.calls: dict[str, KeyedEvent] = {}
        self._do(self.machine.restore())

    def event(self, key: str) -> None:
        number = self.accepted
        item = KeyedEvent(f"e{number}", key, Event(b"%d" % number, {"n": number}), self.now_ms)
        self.accepted += 1
        self._do(self.machine.event(item, encode(item), self._times))

    def answer(self, id: str, cost: int) -> None:
        key = self.calls.pop(id).key
        answer = Result(id, key, {}, "yes", Usage(1, 1), 1, 0, 0.1, 0.1, cost_pico=cost)
        self._do(self.machine.answered(id, answer, self._times))

    def fail(self, id: str, cost: int | None) -> None:
        key = self.calls.pop(id).key
        letter = DeadLetter(b"", "invalid_answer", "", 3, id, key, cost_pico=cost)
        self._do(self.machine.answered(id, letter, self._times))

    def spent(self) -> dict[tuple[str, int], int]:
        stores = [self.stores[name] for name in SPENT]
        ledger = Ledger(stores, CEILING)
        return {
            (key, day): ledger.spent_pico(key, day * DAY_MS)
            for store, day in zip(stores, ledger.days(), strict=True)
            for key in store.keys() - {DAY}
        }

    def save(self) -> Any:
        stores = {name: DictStore(store) for name, store in self.stores.items()}
        return stores, self.accepted, self.results[:], self.letters[:], self.paid.copy()

    def load(self, saved: Any) -> None:
        stores, self.accepted, results, letters, paid = saved
        self.stores = {name: DictStore(store) for name, store in stores.items()}
        self.results, self.letters, self.paid = results[:], letters[:], paid.copy()
        self.restart()

    def _times(self) -> Times:
        return Times(self.now_ms)

    def _do(self, effects: Any) -> None:
        effect: Effect
        for effect in effects:
            if isinstance(effect, StartCall):
                self.calls[effect.item.id] = effect.item
            elif isinstance(effect, CountFailure):
                self.failures.append(effect.cause)
            elif isinstance(effect, Emit):
                record = effect.record
                assert record.key is not None
                if record.cost_pico:
                    today = self.now_ms // DAY_MS
                    self.paid[record.key, today] += record.cost_pico
                    # Only a day before and after are kept.
                    self.paid = Counter({of: n for of, n in self.paid.items() if abs(of[1] - today) <= 1})
                if isinstance(record, Result):
                    self.results.append(record)
                    continue
                self.letters.append(record)
                if record.cause == "budget" and "calls of the key wait" not in record.detail:
                    assert self.paid[record.key, self.now_ms // DAY_MS] + MOST > self.ceiling


@given(st.data())
def test_no_key_exceeds_its_daily_ceiling_despite_crashes(data: st.DataObject) -> None:
    shard = Shard()
    saved = shard.save()
    for _ in range(data.draw(st.integers(1, 60))):
        names = ["event", "event", "event", "answer", "fail", "day", "back", "save", "die"]
        what = data.draw(st.sampled_from(names))
        if what == "event":
            shard.event(data.draw(st.sampled_from("ab")))
        elif what in ("answer", "fail") and shard.calls:
            id = data.draw(st.sampled_from(sorted(shard.calls)))
            cost = data.draw(st.integers(0, MOST))
            shard.answer(id, cost) if what == "answer" else shard.fail(id, cost or None)
        elif what == "day":
            shard.now_ms += data.draw(st.integers(1, 3 * DAY_MS))
        elif what == "back" and not shard.calls:
            # Calls in flight count on the day of their answer: those of a later day may not fit.
            shard.now_ms -= data.draw(st.integers(1, 3 * DAY_MS))
            saved = shard.save()
        elif what == "save":
            saved = shard.save()
        elif what == "die":
            shard.load(saved)
        today = shard.now_ms // DAY_MS
        for key in "ab":
            held = MOST * sum(call.key == key for call in shard.calls.values())
            assert shard.paid[key, today] + held <= CEILING
    while shard.calls:
        shard.answer(min(shard.calls), MOST)
    assert len(shard.results) + len(shard.letters) == shard.accepted
    assert shard.spent() == shard.paid


def test_calls_near_the_ceiling_wait_for_those_in_flight() -> None:
    shard = Shard()
    for _ in range(1000):
        shard.event("a")
    assert (len(shard.calls), len(shard.letters)) == (3, 1000 - 3 - MAX_WAITING)
    assert (shard.machine.room("a"), shard.machine.room("b")) == ("full key", "slot")
    letter = shard.letters[0]
    assert (letter.cause, letter.attempts, letter.raw, letter.cost_pico) == ("budget", 0, b"67", None)
    assert (
        "64 calls of the key wait for those in flight; the key has spent 0 of 0.0000000001" in letter.detail
    )
    while shard.calls:
        shard.answer(min(shard.calls, key=lambda id: int(id[1:])), 10)
        shard.restart()
    # As if the calls had been made one after the other.
    assert [each.id for each in shard.results] == [f"e{n}" for n in range(8)]
    assert (len(shard.letters), shard.machine.awaiting) == (992, False)
    shard.event("b")
    assert len(shard.calls) == 1


def test_unaffordable_call_has_its_own_cause() -> None:
    shard = Shard()
    shard.most = lambda item: 0 if item.id == "e80" else 2 * CEILING if item.id == "e81" else MOST
    shard.restart()
    for _ in range(80):
        shard.event("a")
    shard.event("a")
    assert "e80" in shard.calls
    shard.restart()
    assert set(shard.calls) == {"e0", "e1", "e2", "e80"}
    shard.fail("e80", None)
    assert shard.letters[-1].cause == "invalid_answer"
    for id in ("e0", "e1", "e2"):
        shard.answer(id, 0)
    assert len(shard.calls) == 3


def test_refusal_names_its_own_reason() -> None:
    shard = Shard()
    for _ in range(MAX_WAITING + 3):
        shard.event("a")
    # After a restart with a lower ceiling, more calls may wait than otherwise.
    shard.ceiling = 2 * MOST - 1
    shard.restart()
    assert list(shard.calls) == ["e0"]
    shard.answer("e0", MOST)
    assert len(shard.letters) == MAX_WAITING + 2
    assert not [letter for letter in shard.letters if "calls of the key wait" in letter.detail]


def test_each_utc_day_has_its_own_ceiling_and_old_days_are_dropped() -> None:
    shard = Shard()
    for key in "aaabc":
        shard.event(key)
        shard.answer(f"e{shard.accepted - 1}", MOST)
    shard.now_ms += DAY_MS - 1
    shard.event("a")
    assert shard.letters[-1].cause == "budget"
    shard.now_ms += 1
    shard.event("a")
    shard.answer("e6", 1)
    assert {day for _, day in shard.spent()} == {20_000, 20_001}
    shard.now_ms += DAY_MS
    shard.event("a")
    shard.answer("e7", 1)
    assert shard.spent() == {("a", 20_001): 1, ("a", 20_002): 1}


@pytest.mark.parametrize("ahead_days", [1, 365])
def test_fast_clock_raises_no_ceiling(ahead_days: int) -> None:
    shard = Shard()
    shard.now_ms += ahead_days * DAY_MS
    shard.event("a")
    shard.answer("e0", 1)
    shard.now_ms -= ahead_days * DAY_MS
    for _ in range(4):
        shard.event("a")
    shard.answer("e1", 30)
    shard.restart()
    assert list(shard.calls) == ["e2", "e3"]
    assert shard.spent() == shard.paid


class Unwalked(DictStore):
    def items(self) -> NoReturn:
        raise AssertionError("a walk over the amounts of all keys")


def test_restart_and_midnight_do_not_scan_all_amounts() -> None:
    shard = Shard()
    shard.stores = {name: Unwalked() for name in SPENT}
    for _ in range(4):
        shard.restart()
        for key in "abc":
            shard.event(key)
            shard.answer(f"e{shard.accepted - 1}", MOST)
        shard.now_ms += DAY_MS
    assert shard.spent() == {(key, day): MOST for key in "abc" for day in (20_002, 20_003)}


def test_restored_calls_finish_despite_a_lowered_ceiling() -> None:
    shard = Shard()
    for _ in range(9):
        shard.event("a")
    shard.ceiling = 10
    shard.restart()
    assert list(shard.calls) == ["e0"]
    shard.answer("e0", 30)
    assert (len(shard.results), len(shard.letters), shard.machine.awaiting) == (1, 8, False)


class AskTwice(Program[Any]):
    """Asks twice about each event; continues without an answer."""

    def initial(self, key: str) -> Any:
        return {}

    def on_event(self, state: Any, event: Event, now: Moment) -> Step[Any]:
        return Step(state, Ask((Message("user", "?"),), "first"))

    def on_answer(self, state: Any, tag: str, answer: Answer, now: Moment) -> Step[Any]:
        if tag == "first":
            return Step(state, Ask((Message("user", "!"),), "second"))
        return Step(state, outputs=(Output("whole"), Output("more")))

    def on_failure(self, state: Any, tag: str, failure: Failure, now: Moment) -> Step[Any]:
        return Step(state, outputs=(Output(f"without {tag}: {failure.cause}"),))


def test_program_calls_add_up_and_a_rejected_one_fails() -> None:
    shard = Shard(ProgramMachines(AskTwice(), StateLimits()))
    shard.event("a")
    shard.answer("e0", 30)
    shard.restart()
    shard.answer("e0/2", 29)
    assert [(each.answer, each.cost_pico) for each in shard.results] == [("whole", 59), ("more", 0)]
    shard.event("a")
    shard.answer("e1", 30)
    assert (shard.results[-1].answer, shard.results[-1].cost_pico) == ("without second: budget", 30)
    assert (shard.failures, shard.calls, shard.spent()) == (["budget"], {}, {("a", 20_000): 89})


def test_events_that_wait_for_a_refused_call_follow_it() -> None:
    shard = Shard(ProgramMachines(Remember(), StateLimits()))
    for _ in range(200):
        shard.event("a")
    for _ in range(3):
        shard.answer(next(iter(shard.calls)), MOST)
    assert (len(shard.results), len(shard.letters), shard.calls) == (3, 197, {})
    assert [(letter.cause, letter.raw) for letter in shard.letters] == [
        ("budget", b"%d" % number) for number in range(3, 200)
    ]
    assert (shard.failures, shard.machine.awaiting) == ([], False)


def test_calls_of_two_keys_may_have_the_same_id() -> None:
    shard = Shard(ProgramMachines(Remember(), StateLimits()))
    answers = [
        Result("order-1", key, {}, "yes", Usage(1, 1), 1, 0, 0.1, 0.1, cost_pico=cost)
        for key, cost in (("ann", 5), ("bob", 7))
    ]
    for each in answers:
        item = KeyedEvent("order-1", each.key or "", Event(b"", {"n": 1}), shard.now_ms)
        shard._do(shard.machine.event(item, encode(item), shard._times))
    shard.restart()
    for each in answers:
        shard._do(shard.machine.answered("order-1", each, shard._times))
    assert shard.spent() == {("ann", 20_000): 5, ("bob", 20_000): 7}
