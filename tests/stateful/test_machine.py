"""The machine of inference without a program: one output per event, whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.codec import decode, encode, pack_state
from forebay.errors import ForebayError
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage
from forebay.stateful.machine import (
    IN_FLIGHT,
    DictStore,
    Effect,
    Emit,
    HoldWatermark,
    ReleaseWatermark,
    StartCall,
    StatelessExecutor,
    Times,
    stateless,
)


class Shard:
    """One shard, as the operator runs it. `calls`: in flight, in order of their start; `given`: numbers of
    events whose answer was emitted, with record ids."""

    def __init__(self) -> None:
        self.store = DictStore()
        self.accepted = 0
        self.given: list[tuple[int, str]] = []
        self.restart()

    def restart(self) -> None:
        """Lose everything that is not in the store."""
        self.machine = StatelessExecutor(self.store)
        self.calls: dict[str, KeyedEvent] = {}
        self.again: list[bool] = []
        self.held: dict[str, tuple[int | None, int | None]] = {}
        self._do(self.machine.restore())

    def event(self, id: str, key: str = "") -> None:
        number = self.accepted
        item = KeyedEvent(id, key, Event(b"%d" % number, {"n": number}, 10 * number), 1000 + number)
        self.accepted += 1
        assert self.machine.room(key) == "slot"
        self._do(self.machine.event(item, encode(item), self._no_time))

    def answer(self, id: str, *, well: bool = True) -> None:
        call, given = self.calls.pop(id), len(self.given)
        answer: Result | DeadLetter = Result(id, call.key, call.event.fields, "yes", Usage(), 1, 0, 0.1, 0.1)
        if not well:
            answer = DeadLetter(call.event.raw, "timeout", "too slow", 3, id, call.key)
        self._do(self.machine.answered(id, answer, self._no_time))
        assert self.given[given:] == [(call.event.fields["n"], id)]

    def save(self) -> tuple[dict[str, bytes], int, list[tuple[int, str]]]:
        return dict(self.store), self.accepted, list(self.given)

    def die(self, saved: tuple[dict[str, bytes], int, list[tuple[int, str]]]) -> None:
        """Return to the saved state: the source continues there, and later output was never committed."""
        store, self.accepted, given = saved
        self.store, self.given = DictStore(store), list(given)
        self.restart()

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartCall(item, again):
                    assert item.id not in self.calls, "two calls with one id"
                    assert self.held[item.id] == (item.event.time_ms, item.read_ms)
                    self.calls[item.id] = item
                    self.again.append(again)
                case HoldWatermark(name, time_ms, read_ms):
                    assert name not in self.held
                    self.held[name] = (time_ms, read_ms)
                case ReleaseWatermark(name):
                    del self.held[name]
                case Emit(Result() as result, data):
                    assert data == encode(result)
                    self.given.append((result.fields["n"], result.id))
                case Emit(DeadLetter() as letter, data):
                    assert data == encode(letter)
                    self.given.append((int(letter.raw), str(letter.id)))
                case _:
                    raise AssertionError(f"not of this machine: {effect}")
        assert self.machine.awaiting == bool(self.calls)
        assert set(self.calls) == set(self.held) == set(self.store)

    def _no_time(self) -> Times:
        raise AssertionError("a look at the clocks costs, and nothing here needs it")


@settings(max_examples=4 * settings.default.max_examples)
@given(st.data())
def test_each_event_gives_one_output_despite_faults(data: st.DataObject) -> None:
    """Random events, some with equal ids, answers in any order, and kills, each with a restore."""
    shard = Shard()
    saved = shard.save()
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["event", "event", "event", "answer", "fail", "save", "die"])):
            case "event":
                shard.event(data.draw(st.sampled_from(["a", "b", "b#2", f"e{shard.accepted}"])))
            case "answer" | "fail" as how if shard.calls:
                shard.answer(data.draw(st.sampled_from(sorted(shard.calls))), well=how == "answer")
            case "save":
                saved = shard.save()
            case "die":
                shard.die(saved)
                assert all(shard.again)
                assert shard.calls.keys() == saved[0].keys()
                # In the order in which they were accepted, so that those of a key can leave in it.
                numbers = [call.event.fields["n"] for call in shard.calls.values()]
                assert numbers == sorted(numbers)
    while shard.calls:
        shard.answer(data.draw(st.sampled_from(sorted(shard.calls))))
    assert sorted(number for number, _ in shard.given) == list(range(shard.accepted))
    assert (shard.store, shard.held) == ({}, {})


def test_restore_repeats_calls_under_the_same_ids() -> None:
    shard = Shard()
    for id in ("z", "same", "same", "a", "same"):
        shard.event(id)
    shard.answer("same")
    before = list(shard.calls.items())
    assert [id for id, _ in before] == ["z", "same#2", "a", "same#3"]
    shard.restart()
    assert list(shard.calls.items()) == before
    assert shard.again == [True] * 4
    # An id that is free again is used again, and none that is not.
    shard.event("same")
    shard.event("same#2")
    assert list(shard.calls)[4:] == ["same", "same#2#2"]


def test_results_of_events_found_after_a_restart_show_restored() -> None:
    store = DictStore()
    found: dict[str, bool] = {}
    for machine, id in ((StatelessExecutor(store), "old"), (StatelessExecutor(store), "new")):
        machine.restore()
        item = KeyedEvent(id, "", Event(b"", {}), 0)
        machine.event(item, encode(item), lambda: Times(0))
    for id in ("old", "new"):
        answer = Result(id, "", {}, "yes", Usage(), 1, 0, 0.1, 0.1)
        for effect in machine.answered(id, answer, lambda: Times(0)):
            if isinstance(effect, Emit):
                assert isinstance(effect.record, Result)
                assert decode(effect.data) == effect.record
                found[id] = effect.record.restored
    assert found == {"old": True, "new": False}


def test_every_restore_reads_the_same_store() -> None:
    opened: dict[str, DictStore] = {}
    machine = stateless(lambda name: opened.setdefault(name, DictStore()))()
    item = KeyedEvent("e", "k", Event(b"x", {}), 0)
    machine.event(item, encode(item), lambda: Times(0))
    assert list(opened) == [IN_FLIGHT]
    assert opened[IN_FLIGHT] == {"e": pack_state(0, "e", encode(item))}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (b"\x94\x63\x00\xa1e\xc4\x00", "the checkpoint's requests: format 99; this Forebay reads format 4"),
        (pack_state(0, "e"), "requests cannot be read"),
        (b"\x80\x04.", "requests cannot be read"),
    ],
)
def test_entry_of_another_version_is_rejected(entry: bytes, message: str) -> None:
    machine = StatelessExecutor(DictStore({"e": entry}))
    with pytest.raises(ForebayError, match=message):
        machine.restore()
