"""What a shard remembers of its keys, and when it looks at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import pack_state
from forebay.errors import ForebayError
from forebay.records import Event
from forebay.stateful.key_states import FARTHEST_MS, PER_CHUNK, Due, StateLimits
from forebay.stateful.machine import DictStore
from forebay.stateful.program import Moment, Output, Program, Step, TimeDomain, Timer
from forebay.testing.stateful import Machine

DAY_MS = 86_400_000


class Stepping(Program[Any]):
    """Scripted steps without calls. A timer emits its name."""

    def __init__(
        self, on_event: Callable[..., Step[Any]], on_timer: Callable[..., Step[Any]] | None = None
    ) -> None:
        self._event = on_event
        self._timer = on_timer

    def initial(self, key: str) -> Any:
        return {}

    def on_event(self, state: Any, event: Event, now: Moment) -> Step[Any]:
        return self._event(state, event, now)

    def on_timer(self, state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return self._timer(state, name, now) if self._timer else Step(state, outputs=(Output(name),))


def noted_keys(machine: Machine) -> int:
    """Number of entries that wait for their time; one may stand for many timers of a key."""
    return sum(head.count - head.taken for head in machine.turns._due.heads.values())


def left_over(machine: Machine) -> list[Any]:
    stores = machine.stores
    return [*stores.keys.items(), *stores.due.items(), *stores.work.items(), *machine.held]


def test_forgotten_key_that_returns_is_recorded_once() -> None:
    def remember_or_forget(state: Any, event: Event, now: Moment) -> Step[Any]:
        return Step({"seen": True} if not state else None)

    machine = Machine(Stepping(remember_or_forget), StateLimits(ttl_s=86_400.0))
    for number in range(1000):
        machine.wall_ms += 1000
        machine.event("a", number)
    assert noted_keys(machine) == 1
    machine.restart()
    machine.event("a", 1000)
    assert noted_keys(machine) == 1
    # Looked at a day after its first step, the key has a day from its last one.
    machine.pass_time(wall_ms=machine.wall_ms + DAY_MS - 1000)
    assert machine.stores.keys.get("a") is not None
    machine.pass_time(wall_ms=machine.wall_ms + 1000)
    assert left_over(machine) == []


def test_expired_key_leaves_no_state() -> None:
    def remember_or_forget(state: Any, event: Event, now: Moment) -> Step[Any]:
        return Step(None) if state else Step({"seen": True}, timers={"t": Timer(5000)})

    machine = Machine(Stepping(remember_or_forget))
    machine.event("a", 0)
    machine.event("a", 1)
    machine.pass_time(watermark_ms=6000)
    assert machine.results == []
    assert left_over(machine) == []


def test_frequent_timer_does_not_rewrite_a_distant_one() -> None:
    def tick(state: Any, name: str, now: Moment) -> Step[Any]:
        timers = {"near": Timer(now.wall_ms + 100, "wall")} if name == "near" else {"near": None}
        return Step(state, outputs=(Output(name),), timers=timers)

    def begin(state: Any, event: Event, now: Moment) -> Step[Any]:
        return Step({"on": True}, timers={"far": Timer(60_000, "wall"), "near": Timer(100, "wall")})

    machine = Machine(Stepping(begin, tick))
    machine.event("a", 0)
    for _ in range(500):
        machine.pass_time(wall_ms=machine.wall_ms + 100)
    assert noted_keys(machine) == 2
    assert len(machine.results) == 500
    machine.pass_time(wall_ms=60_000)
    assert [r.answer for r in machine.results].count("far") == 1
    machine.pass_time(wall_ms=120_000)
    assert list(machine.stores.due.items()) == []


def test_timers_count_towards_the_limit_of_a_key() -> None:
    def another(state: Any, event: Event, now: Moment) -> Step[Any]:
        return Step(state, timers={f"t{event.fields['n']}": Timer(1000, "wall")})

    machine = Machine(Stepping(another), StateLimits(max_state_bytes=1000))
    for number in range(200):
        machine.event("a", number)
    assert max(len(data) for _, data in machine.stores.keys.items()) < 1100
    assert {letter.cause for letter in machine.letters} == {"state_too_large"}
    set_timers = 200 - len(machine.letters)
    machine.pass_time(wall_ms=1000)
    assert len(machine.results) == set_timers > 10


@pytest.mark.parametrize("time_ms", [2**63, 2**70, -(2**70)])
def test_timer_beyond_the_maximum_time_does_not_fail_the_job(time_ms: int) -> None:
    machine = Machine(Stepping(lambda s, e, n: Step({"on": True}, timers={"t": Timer(time_ms, "wall")})))
    machine.event("a", 0)
    (wake,) = machine.wakes
    assert abs(wake[1]) <= FARTHEST_MS + 100
    machine.end()
    assert [r.answer for r in machine.results] == ["t"]


def test_timer_with_a_non_text_name_fails_its_event_only() -> None:
    machine = Machine(Stepping(lambda s, e, n: Step({"on": True}, timers={"\ud800": Timer(5)})))
    machine.event("a", 0)
    assert [letter.cause for letter in machine.letters] == ["program_failed"]
    assert left_over(machine) == []


CLOCKS: list[TimeDomain] = ["event", "wall"]
places = st.tuples(st.sampled_from(CLOCKS), st.sampled_from([100, 200]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), places, st.integers(1, 2 * PER_CHUNK)),
        st.tuples(st.just("come"), places, st.just(0)),
        st.tuples(st.just("take"), places, st.just(0)),
        st.tuples(st.just("restore"), places, st.just(0)),
    ),
    max_size=40,
)


def restored(work: DictStore, due: DictStore) -> Due:
    found = Due(work, due)
    for name, value in work.items():
        assert found.restore(name, value)
    found.restored()
    return found


@given(steps)
def test_each_key_is_returned_once_in_order_when_due(
    script: list[tuple[str, tuple[TimeDomain, int], int]],
) -> None:
    work, due = DictStore(), DictStore()
    found = Due(work, due)
    noted: dict[tuple[TimeDomain, int], list[str]] = {}
    come: dict[tuple[TimeDomain, int], int] = {}
    number = 0
    for what, at, count in script:
        if what == "add":
            for _ in range(count):
                assert found.add(*at, f"k{number}") == (at not in noted)
                noted.setdefault(at, []).append(f"k{number}")
                number += 1
        elif what == "come":
            found.mark_due(*at)
            if at in noted:
                come.setdefault(at, len(noted[at]))
        elif what == "restore":
            found = restored(work, due)
        elif found.first is not None:
            first = found.first
            keys = found.take()
            assert 0 < len(keys) <= min(PER_CHUNK, come[first])
            assert keys == noted[first][: len(keys)]
            del noted[first][: len(keys)]
            come[first] -= len(keys)
            if not come[first]:
                del come[first]
            if not noted[first]:
                del noted[first]
        assert set(found.heads) == set(noted)
        assert {at for at in noted if found.has_reached(*at)} == set(come)
    assert (found.first is None) == (not come)
    if not noted:
        assert (work, due) == ({}, {})


@pytest.mark.parametrize("head", [pack_state("event", 100, 2), b"\x80", b"\x96\x63\xa5event\x64\x02\x00\x00"])
def test_damaged_header_is_rejected(head: bytes) -> None:
    with pytest.raises(ForebayError, match="the checkpoint's timers of keys"):
        Due(DictStore(), DictStore()).restore("devent:100", head)
