"""Runs a stateful program without Flink or an engine, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from forebay.codec import encode
from forebay.records import DeadLetter, Event, KeyedEvent, Result, Usage
from forebay.stateful.key_states import StateLimits, Stores
from forebay.stateful.machine import (
    DictStore,
    Effect,
    Emit,
    HoldWatermark,
    ReleaseWatermark,
    StartCall,
    Times,
    WakeAt,
)
from forebay.stateful.program import Program, TimeDomain
from forebay.stateful.shard_executor import ShardExecutor
from forebay.stateful.turns import ProgramRequest


class Machine:
    """Runs one program like the operator does, without Flink and without an engine.

    A test answers its calls, moves its clocks, and kills it.

    Args:
        program: The program.
        limits: Limits of a key's state, as in `infer_stateful`.
        wall_ms: The wall clock at the start.
        room: Maximum number of pending calls at which timers still start calls; None: unlimited.

    Attributes:
        calls: Pending calls, by key.
        asked: All calls so far.
        asked_again: Calls repeated after a restart.
        results, letters: The results and the dead letters so far.
        held: Times that event time must not pass yet, by what holds them back.
        wakes: Times at which the operator would wake the program's shard.
        wall_ms, watermark_ms: The clocks; `pass_time` moves them.

    >>> import forebay as fb
    >>> class Count(fb.Program[int]):
    ...     def initial(self, key):
    ...         return 0
    ...     def on_event(self, state, event, now):
    ...         return fb.Step(state + 1, fb.Ask((fb.Message("user", event.fields["text"]),)))
    >>> machine = Machine(Count())
    >>> machine.event("ann", 1, text="Hello.")
    >>> machine.restart()
    >>> machine.answer("ann", "Hello, Ann.")
    >>> machine.results[-1].answer
    'Hello, Ann.'
    """

    def __init__(
        self,
        program: Program[Any],
        limits: StateLimits | None = None,
        wall_ms: int = 0,
        *,
        room: int | None = None,
    ) -> None:
        self.program = program
        self.limits = limits or StateLimits()
        self.room = room
        self.stores = Stores(DictStore(), DictStore(), DictStore())
        self.wall_ms = wall_ms
        self.watermark_ms: int | None = None
        self.results: list[Result] = []
        self.letters: list[DeadLetter] = []
        self.asked: list[ProgramRequest] = []
        self.asked_again: list[ProgramRequest] = []
        self._begin()

    def _begin(self) -> None:
        self.turns: ShardExecutor[Any] = ShardExecutor(self.program, self.limits, self.stores)
        self.calls: dict[str, ProgramRequest] = {}
        self.held: dict[str, int | None] = {}
        self.wakes: set[tuple[TimeDomain, int]] = set()
        self._do(self.turns.restore())
        self._fire()

    def event(self, key: str, number: int, *, time_ms: int | None = None, **fields: Any) -> None:
        """Send an event of `key` with the id `eNUMBER`. Its fields are `n`, the number, and `fields`."""
        event = Event(str(number).encode(), {"n": number, **fields}, time_ms)
        item = KeyedEvent(f"e{number}", key, event, self.wall_ms)
        self._do(self.turns.event(item, encode(item), self._times))

    def answer(self, key: str, value: Any = "yes", usage: Usage | None = None) -> None:
        """Answer the call of `key`."""
        call = self.calls.pop(key)
        result = Result(call.id, key, {}, value, usage or Usage(10, 2, 5), 1, call.read_ms, 0.1, 0.1)
        self._do(self.turns.answered(call.id, result, self._times))
        self._fire()

    def give_up(self, key: str, cause: str = "timeout") -> None:
        """Fail the call of `key` for good, with this cause."""
        call = self.calls.pop(key)
        letter = DeadLetter(call.event.raw, cause, "too slow", 3, call.id, key)
        self._do(self.turns.answered(call.id, letter, self._times))
        self._fire()

    def pass_time(self, *, wall_ms: int | None = None, watermark_ms: int | None = None) -> None:
        """Move the clocks. Due timers fire in order of their times."""
        self.wall_ms = self.wall_ms if wall_ms is None else wall_ms
        self.watermark_ms = self.watermark_ms if watermark_ms is None else watermark_ms
        low_ms = -(2**63) if self.watermark_ms is None else self.watermark_ms
        now: dict[TimeDomain, int] = {"wall": self.wall_ms, "event": low_ms}
        while due := sorted((t, c) for c, t in self.wakes if t <= now[c]):
            time_ms, clock = due[0]
            self.wakes.discard((clock, time_ms))
            self.turns.mark_due(clock, time_ms)
            self._fire()

    def end(self, answer: Callable[[Machine], None] | None = None, rounds: int = 8) -> None:
        """End the input: answer all calls, with `answer` or `yes`, then fire the timers."""
        respond = answer or (lambda machine: machine.answer(next(iter(machine.calls))))
        for _ in range(rounds):
            while self.calls:
                respond(self)
            if not self.turns.timers:
                return
            self.turns.mark_all_due()
            self._fire()

    def restart(self) -> None:
        """Lose everything that is not in state, like a kill. Pending calls are repeated."""
        self._begin()

    def _fire(self) -> None:
        while self.turns.due and (self.room is None or len(self.calls) < self.room):
            self._do(self.turns.fire(self._times))

    def _times(self) -> Times:
        return Times(self.wall_ms, self.watermark_ms)

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartCall(ProgramRequest() as call, again):
                    assert call.key not in self.calls, "two calls of one key"
                    self.calls[call.key] = call
                    (self.asked_again if again else self.asked).append(call)
                case Emit(Result() as result):
                    self.results.append(result)
                case Emit(DeadLetter() as letter):
                    self.letters.append(letter)
                case WakeAt(clock, time_ms):
                    self.wakes.add((clock, time_ms))
                case HoldWatermark(name, time_ms, _):
                    assert name not in self.held
                    self.held[name] = time_ms
                case ReleaseWatermark(name):
                    del self.held[name]
