"""Keyed functions without Flink, in chains: state and timers by key, barriers, checkpoints,
crashes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pyflink.datastream import KeyedProcessFunction, OutputTag, TimeDomain
from tests.harness.keyed_state import Context, KeyedState, WallClock

from forebay.flink.shards import subtask_of

FIRST_MS, LAST_MS = -(2**63), 2**63 - 1
MAX_FIRINGS = 20_000
"""Maximum timers per round; a function with more never ends."""


@dataclass(frozen=True)
class Operator:
    """One keyed function of a chain."""

    make: Callable[[], KeyedProcessFunction]
    key: Callable[[Any], int]
    prepare: Callable[[Any], Iterable[Any]] = lambda element: (element,)
    """Converts an element on its way here; stateless."""
    one_subtask: bool = False
    """At every parallelism, like readers."""
    late_ms: int | None = None
    """If given, outputs are `(element, time in ms)`, and the operator emits its own watermarks: this far
    behind the greatest time, until the input ends."""


@dataclass(frozen=True)
class Checkpoint:
    """The rest of a run: number of elements read, each operator's state, elements in flight to each operator,
    and outputs."""

    read: int
    states: tuple[KeyedState, ...]
    on_the_way: tuple[tuple[Any, ...], ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True)
class _Watermark:
    time_ms: int


@dataclass(frozen=True)
class _Barrier:
    number: int


@dataclass(eq=False)
class _Subtask:
    operator: Operator
    function: KeyedProcessFunction
    state: KeyedState
    inputs: list[deque[Any]]
    watermarks: list[int]
    waiting: set[int] = field(default_factory=set)
    """Inputs whose barrier has arrived, while that of others has not."""
    low_ms: int = FIRST_MS
    high_ms: int = FIRST_MS
    """The greatest time of an output, if the operator emits watermarks: not in checkpoints."""
    wakes_for_ms: int | None = None
    wakes_s: float = 0.0
    """The set processing-time timer, and when it fires on the monotonic clock."""
    key: int = 0
    later: list[tuple[float, int, int]] = field(default_factory=list)


class Chain:
    """A run of `operators`, one behind the other, over `elements`, each with a watermark behind it
    or None. `restored`: what an earlier run left. `parallelism`: of each operator. `while_firing`
    is called between two processing-time timers: other things happen meanwhile."""

    def __init__(
        self,
        operators: Sequence[Operator],
        elements: Sequence[tuple[Any, int | None]],
        clock: WallClock,
        *,
        parallelism: int = 1,
        restored: Checkpoint | None = None,
        while_firing: Callable[[], object] = lambda: None,
    ) -> None:
        self._elements = elements
        self._clock = clock
        self._while_firing = while_firing
        self._read = 0 if restored is None else restored.read
        self._ended = False
        self._before: tuple[Any, ...] = () if restored is None else restored.outputs
        self._made: list[tuple[tuple[int, int], Any]] = []
        self._stages: list[list[_Subtask]] = []
        self._barriers = 0
        self._snapshots: dict[int, _Snapshot] = {}
        self.newest = restored
        self.firings = 0
        """Number of processing-time timers fired so far."""
        before = 1
        for index, operator in enumerate(operators):
            whole = KeyedState() if restored is None else restored.states[index]
            many = 1 if operator.one_subtask else parallelism
            self._stages.append([self._opened(operator, whole.part(n, many), before) for n in range(many)])
            before = many
        if restored is not None:
            for index, elements_on_the_way in enumerate(restored.on_the_way):
                for element in elements_on_the_way:
                    self._to(index, 0, element)

    def _opened(self, operator: Operator, state: KeyedState, inputs: int) -> _Subtask:
        subtask = _Subtask(
            operator,
            operator.make(),
            state,
            [deque() for _ in range(inputs)],
            [FIRST_MS] * inputs,
        )
        subtask.function.open(Context(subtask, self._clock))
        self._set_wake(subtask)
        return subtask

    def close(self) -> None:
        for subtask in self._subtasks():
            subtask.function.close()

    @property
    def outputs(self) -> tuple[Any, ...]:
        """All outputs so far, of earlier runs as far as they are in a checkpoint."""
        return (*self._before, *(output for _, output in self._made))

    # What may happen next

    def read(self) -> bool:
        """Read the source's next element, or its end; False if it has ended."""
        if self._ended:
            return False
        if self._read == len(self._elements):
            self._ended = True
            self._mark(0, 0, LAST_MS)
            return True
        element, watermark_ms = self._elements[self._read]
        self._read += 1
        for each in self._stages[0][0].operator.prepare(element):
            self._to(0, 0, each)
        if watermark_ms is not None:
            self._mark(0, 0, watermark_ms)
        return True

    def ready(self) -> list[tuple[int, int, int]]:
        """Operator, subtask and input of each element that can be processed now."""
        return [
            (stage, number, at)
            for stage, subtasks in enumerate(self._stages)
            for number, subtask in enumerate(subtasks)
            for at, queue in enumerate(subtask.inputs)
            if queue and at not in subtask.waiting
        ]

    def take(self, stage: int, number: int, at: int) -> None:
        """Process the next element of an input of a subtask."""
        subtask = self._stages[stage][number]
        element = subtask.inputs[at].popleft()
        match element:
            case _Barrier(barrier):
                subtask.waiting.add(at)
                if len(subtask.waiting) == len(subtask.inputs):
                    subtask.waiting.clear()
                    self._snapshot(stage, number, barrier)
            case _Watermark(time_ms):
                subtask.watermarks[at] = max(subtask.watermarks[at], time_ms)
                self._move(stage, number, min(subtask.watermarks))
            case _:
                subtask.key = subtask.operator.key(element)
                context = Context(subtask, self._clock)
                self._give(stage, number, subtask.function.process_element(element, context))
        self._set_wake(subtask)

    def begin_checkpoint(self) -> None:
        """Send a barrier from the source."""
        self._barriers += 1
        self._snapshots[self._barriers] = _Snapshot(self._read, [KeyedState() for _ in self._stages])
        for subtask in self._stages[0]:
            subtask.inputs[0].append(_Barrier(self._barriers))

    def checkpoint_at_once(self) -> None:
        """An unaligned checkpoint, with elements in flight."""
        self._give_up_barriers()
        states = []
        for subtasks in self._stages:
            whole = KeyedState()
            for subtask in subtasks:
                whole.add(subtask.state.copy())
            states.append(whole)
        on_the_way = tuple(
            tuple(
                element
                for subtask in subtasks
                for queue in subtask.inputs
                for element in queue
                # Flink emits watermarks again; the source's follows from its position.
                if not isinstance(element, _Watermark)
            )
            for subtasks in self._stages
        )
        self.newest = Checkpoint(self._read, tuple(states), on_the_way, self.outputs)

    def pass_time(self, seconds: float) -> None:
        """Advance time, and fire due processing-time timers at each subtask in turn."""
        self._clock.advance(seconds)
        for stage, subtasks in enumerate(self._stages):
            for number, subtask in enumerate(subtasks):
                self._set_later(subtask)
                if subtask.wakes_for_ms is not None and subtask.wakes_s <= self._clock.monotonic_s():
                    self._fire_wall(stage, number)

    def finish(self, choose: Callable[[int], int] = lambda _: 0) -> None:
        """Run to the end, taking elements as chosen by `choose`, a function of their number."""
        while self.read():
            pass
        while ready := self.ready():
            self.take(*ready[choose(len(ready))])

    # How

    def _subtasks(self) -> Iterator[_Subtask]:
        return (subtask for subtasks in self._stages for subtask in subtasks)

    def _to(self, stage: int, at: int, element: Any) -> None:
        subtasks = self._stages[stage]
        number = subtask_of(subtasks[0].operator.key(element), len(subtasks))
        subtasks[number].inputs[at].append(element)

    def _mark(self, stage: int, at: int, time_ms: int) -> None:
        for subtask in self._stages[stage] if stage < len(self._stages) else ():
            subtask.inputs[at].append(_Watermark(time_ms))

    def _give(self, stage: int, number: int, outputs: Iterable[Any] | None) -> None:
        subtask = self._stages[stage][number]
        for output in outputs or ():
            element, time_ms = output, None
            side = isinstance(output, tuple) and isinstance(output[0], OutputTag)
            if subtask.operator.late_ms is not None and not side:
                element, time_ms = output
            if side or stage + 1 == len(self._stages):
                self._made.append(((stage, number), element))
                continue
            for each in self._stages[stage + 1][0].operator.prepare(element):
                self._to(stage + 1, number, each)
            if time_ms is not None and time_ms > subtask.high_ms:
                assert subtask.operator.late_ms is not None
                subtask.high_ms = time_ms
                self._mark(stage + 1, number, time_ms - subtask.operator.late_ms - 1)

    def _move(self, stage: int, number: int, to_ms: int) -> None:
        subtask = self._stages[stage][number]
        if to_ms <= subtask.low_ms:
            return
        subtask.low_ms = to_ms
        firings = count()
        while subtask.state.event and subtask.state.event[0][0] <= to_ms:
            assert next(firings) < MAX_FIRINGS, "an operator sets timers without end"
            time_ms, subtask.key = subtask.state.event.pop(0)
            context = Context(subtask, self._clock, TimeDomain.EVENT_TIME)
            self._give(stage, number, subtask.function.on_timer(time_ms, context))
        if subtask.operator.late_ms is None or to_ms == LAST_MS:
            self._mark(stage + 1, number, to_ms)

    def _fire_wall(self, stage: int, number: int) -> None:
        subtask = self._stages[stage][number]
        until_ms = subtask.wakes_for_ms
        assert until_ms is not None
        firings = count()
        while subtask.state.wall and subtask.state.wall[0][0] <= until_ms:
            assert next(firings) < MAX_FIRINGS, "an operator sets timers without end"
            time_ms, subtask.key = subtask.state.wall.pop(0)
            context = Context(subtask, self._clock, TimeDomain.PROCESSING_TIME)
            self.firings += 1
            self._give(stage, number, subtask.function.on_timer(time_ms, context))
            # If the clock was set back, a timer that is set again would fire in the same round without end.
            self._clock.advance(0.001)
            self._while_firing()
        subtask.wakes_for_ms = None
        self._set_wake(subtask)

    def _set_later(self, subtask: _Subtask) -> None:
        while subtask.later and subtask.later[0][0] <= self._clock.monotonic_s():
            _, time_ms, subtask.key = subtask.later.pop(0)
            Context(subtask, self._clock).timer_service().register_processing_time_timer(time_ms)
        self._set_wake(subtask)

    def _set_wake(self, subtask: _Subtask) -> None:
        if not subtask.state.wall:
            return
        first_ms = subtask.state.wall[0][0]
        if subtask.wakes_for_ms is None or first_ms < subtask.wakes_for_ms:
            # By the present wall clock: setting that later does not change the wait.
            wait_ms = max(0, first_ms - self._clock.wall_ms())
            subtask.wakes_for_ms, subtask.wakes_s = first_ms, self._clock.monotonic_s() + wait_ms / 1000

    def _snapshot(self, stage: int, number: int, barrier: int) -> None:
        snapshot = self._snapshots.get(barrier)
        if snapshot is not None:
            snapshot.states[stage].add(self._stages[stage][number].state.copy())
            snapshot.outputs[stage, number] = sum(place == (stage, number) for place, _ in self._made)
            if len(snapshot.outputs) == sum(map(len, self._stages)):
                self._complete(barrier, snapshot)
        for subtask in self._stages[stage + 1] if stage + 1 < len(self._stages) else ():
            subtask.inputs[number].append(_Barrier(barrier))

    def _complete(self, barrier: int, snapshot: _Snapshot) -> None:
        outputs, left = list(self._before), dict(snapshot.outputs)
        for place, output in self._made:
            if left[place]:
                left[place] -= 1
                outputs.append(output)
        nothing: tuple[tuple[Any, ...], ...] = ((),) * len(self._stages)
        self.newest = Checkpoint(snapshot.read, tuple(snapshot.states), nothing, tuple(outputs))
        self._snapshots = {number: each for number, each in self._snapshots.items() if number > barrier}

    def _give_up_barriers(self) -> None:
        self._snapshots.clear()
        for subtask in self._subtasks():
            subtask.waiting.clear()
            for queue in subtask.inputs:
                kept = [element for element in queue if not isinstance(element, _Barrier)]
                queue.clear()
                queue.extend(kept)


@dataclass
class _Snapshot:
    read: int
    states: list[KeyedState]
    outputs: dict[tuple[int, int], int] = field(default_factory=dict)
