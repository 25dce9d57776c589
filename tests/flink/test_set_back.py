"""The wall clock is set back during calls: timers fire once, not repeatedly until the answers arrive."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.chain import Chain, Operator
from tests.harness.keyed_state import ChosenCalls, WallClock, held_keys, set_after_round
from tests.harness.metric_group import MetricsContext

from forebay.codec import encode
from forebay.flink import operator, shard_timers, stages
from forebay.flink.keying import Keying
from forebay.flink.operator import InferenceOperator
from forebay.flink.shards import flink_keys
from forebay.flink.stages import StageFunction, message, message_key
from forebay.records import DeadLetter, Event, KeyedEvent
from forebay.stateful.key_states import StateLimits
from forebay.stateful.machine import stateless
from forebay.stateful.program import Moment, Output, Program, Step, Timer
from forebay.stateful.shard_executor import ProgramMachines

HOUR_MS = 3_600_000
SHARDS = 3


class Ticks(Program[int]):
    """Emits and sets a timer one minute later each time that one fires."""

    def initial(self, key: str) -> int:
        return 0

    def on_event(self, state: int, event: Event, now: Moment) -> Step[int]:
        return Step(state + 1, timers={"tick": Timer(now.wall_ms + 60_000, "wall")})

    def on_timer(self, state: int, name: str, time_ms: int, now: Moment) -> Step[int]:
        timers = {"tick": Timer(now.wall_ms + 60_000, "wall")}
        return Step(state + 1, outputs=(Output("tick"),), timers=timers)


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


async def nobody(_counts: Any) -> Any:
    """Opens nothing: the test answers calls."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, clock: WallClock) -> list[ChosenCalls]:
    """Calls of the opened operators, answered by the test."""
    made: list[ChosenCalls] = []

    def opened(*given: Any, **more: Any) -> ChosenCalls:
        made.append(ChosenCalls(*given, answer_to=refused, clock=clock, **more))
        return made[-1]

    monkeypatch.setattr(operator, "RequestPool", opened)
    monkeypatch.setattr(operator, "held_keys", held_keys)
    monkeypatch.setattr(shard_timers, "set_after_round", set_after_round)
    return made


def refused(item: KeyedEvent) -> DeadLetter:
    return DeadLetter(item.event.raw, "refused", "by the engine", 1, item.id, item.key)


def chain(clock: WallClock, make: Any, count: int) -> Chain:
    """An operator behind `count` events."""
    keying = Keying(shards=SHARDS, key=lambda event: f"k{event.fields['n']}", clock=clock)
    keying.open(MetricsContext())  # type: ignore[arg-type]
    events = [(encode(Event(b"%d" % n, {"n": n}, position=f"in@{n}")), None) for n in range(count)]
    return Chain([Operator(make, lambda element: element[0], keying.flat_map)], events, clock)


def read_all(chain: Chain, count: int) -> None:
    for _ in range(count):
        chain.read()
    while ready := chain.ready():
        chain.take(*ready[0])


def test_calls_in_flight_are_polled_as_often_as_before(calls: list[ChosenCalls], clock: WallClock) -> None:
    def make() -> InferenceOperator:
        return InferenceOperator(nobody, stateless, capacity=8, clock=clock)

    run = chain(clock, make, 6)
    read_all(run, 6)
    clock.step(-HOUR_MS)
    run.pass_time(0.5)
    looks = run.firings
    assert looks <= 2 * SHARDS
    # Nothing comes in: the operator looks by itself, and takes what is answered.
    while calls[0].answer(0):
        pass
    run.pass_time(0.5)
    run.pass_time(0.5)
    assert len(run.outputs) == 6
    assert run.firings <= looks + 4 * SHARDS


def test_repeated_program_timer_fires_when_due(calls: list[ChosenCalls], clock: WallClock) -> None:
    def make() -> InferenceOperator:
        return InferenceOperator(nobody, ProgramMachines(Ticks(), StateLimits()), capacity=8, clock=clock)

    run = chain(clock, make, 1)
    read_all(run, 1)
    run.pass_time(30)
    clock.step(-HOUR_MS)
    run.pass_time(31)
    assert len(run.outputs) == 1
    for _ in range(10):
        run.pass_time(6.1)
    assert len(run.outputs) == 2


class Closes:
    def __init__(self) -> None:
        self._taken: list[bytes] = []

    def take(self, data: bytes) -> list[tuple[int, bytes]]:
        self._taken.append(data)
        return []

    def due_ms(self, data: bytes) -> int | None:
        return None

    def close(self, time_ms: int) -> list[tuple[int, bytes]]:
        taken, self._taken = self._taken, []
        return [(0, data) for data in taken]

    def finish(self) -> list[tuple[int, bytes]]:
        return self.close(0)

    def to_bytes(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        raise AssertionError("nothing is restored")


def test_one_shards_timer_serves_all_shards_of_a_stage(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "held_keys", held_keys)
    first, second = flink_keys(2)

    def make() -> StageFunction:
        return StageFunction(lambda _, shard: Closes(), shards=2, next_shards=1, wait_ms=500)

    texts = [(message(key, b"text"), None) for key in (first, second)]
    run = Chain([Operator(make, message_key)], texts, clock)
    read_all(run, 1)
    run.pass_time(0.1)
    read_all(run, 1)
    clock.step(-HOUR_MS)
    run.pass_time(0.5)
    assert len(run.outputs) == 2
