"""Keyed functions without Flink, in chains: state and timers by key, barriers, checkpoints, crashes.

What Flink promises, and no more: nothing runs but by a call of a method here, so a test chooses every moment.
One element, one timer or one barrier at a time, at any subtask that has one; a checkpoint counts once every
subtask has had its barrier; a crash leaves what the newest one holds, at whatever parallelism comes next.
"""

from __future__ import annotations

import pickle
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

from pyflink.datastream import KeyedProcessFunction, TimeDomain

from forebay.operators.shards import subtask_of

FIRST_MS, LAST_MS = -(2**63), 2**63 - 1
MOST_FIRINGS = 20_000
"""Timers that fire in one round; more is a function that never comes to an end."""
Timers = list[tuple[int, int]]
"""Time and key, in order: equal times by key."""


class WallClock:
    """Time as one machine has it: monotonic, and a wall clock that somebody may set."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._passed_ms = 0
        self._wall_ms = wall_ms

    def monotonic_s(self) -> float:
        return self._passed_ms / 1000

    def wall_ms(self) -> int:
        return self._wall_ms + self._passed_ms

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._passed_ms += round(seconds * 1000)

    def step(self, ms: int) -> None:
        """The wall clock is set on, or back."""
        self._wall_ms += ms


@dataclass
class KeyedState:
    """All that Flink keeps of one keyed function: values as bytes, by name, key and place; timers."""

    values: dict[str, dict[int, Any]] = field(default_factory=dict)
    event: Timers = field(default_factory=list)
    wall: Timers = field(default_factory=list)

    def copy(self) -> KeyedState:
        values = {name: {key: _copied(one) for key, one in by.items()} for name, by in self.values.items()}
        return KeyedState(values, list(self.event), list(self.wall))

    def part(self, subtask: int, parallelism: int) -> KeyedState:
        """The share of one subtask."""

        def mine(key: int) -> bool:
            return subtask_of(key, parallelism) == subtask

        return KeyedState(
            {name: {k: _copied(v) for k, v in by.items() if mine(k)} for name, by in self.values.items()},
            [timer for timer in self.event if mine(timer[1])],
            [timer for timer in self.wall if mine(timer[1])],
        )

    def add(self, other: KeyedState) -> None:
        for name, by in other.values.items():
            self.values.setdefault(name, {}).update(by)
        self.event = sorted({*self.event, *other.event})
        self.wall = sorted({*self.wall, *other.wall})


@dataclass(frozen=True)
class Operator:
    """One keyed function of a chain. `make` is called for each subtask of each run, `key` for each element
    that comes."""

    make: Callable[[], KeyedProcessFunction]
    key: Callable[[Any], int]
    prepare: Callable[[Any], Iterable[Any]] = lambda element: (element,)
    """What an element becomes on its way here; without state of its own."""
    one_subtask: bool = False
    """At every parallelism, as readers have."""


@dataclass(frozen=True)
class Checkpoint:
    """What is left of a run: how many elements were read, each operator's state, what was on its way to each
    operator, and what had come out."""

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
    """One function with its inputs: a queue from each subtask before it."""

    operator: Operator
    function: KeyedProcessFunction
    state: KeyedState
    inputs: list[deque[Any]]
    watermarks: list[int]
    waiting: set[int] = field(default_factory=set)
    """Inputs whose barrier has come, while that of others has not."""
    low_ms: int = FIRST_MS
    wakes_for_ms: int | None = None
    wakes_s: float = 0.0
    """The processing-time timer that is set, and when it fires, on the clock that nobody sets."""
    key: int = 0


class Chain:
    """A run of `operators`, one behind the other, over `elements`, each with a watermark behind it or None.

    `restored`: what an earlier run left. `parallelism`: of each operator. Outputs that are `(tag, value)`
    pairs leave the chain where they arise, as side outputs do; those of the last operator, all of them.
    `while_firing` is called between two processing-time timers: the world goes on meanwhile.
    """

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
        subtask.function.open(_Context(subtask, self._clock))
        self._set_wake(subtask)
        return subtask

    def close(self) -> None:
        """Close all functions, as a crash need not."""
        for subtask in self._subtasks():
            subtask.function.close()

    @property
    def outputs(self) -> tuple[Any, ...]:
        """All that has come out so far, of earlier runs as far as a checkpoint holds it."""
        return (*self._before, *(output for _, output in self._made))

    # What may happen next

    def read(self) -> bool:
        """The source gives its next element, or its end; False where it has."""
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
        """Operator, subtask and input of each element that may be taken now."""
        return [
            (stage, number, at)
            for stage, subtasks in enumerate(self._stages)
            for number, subtask in enumerate(subtasks)
            for at, queue in enumerate(subtask.inputs)
            if queue and at not in subtask.waiting
        ]

    def take(self, stage: int, number: int, at: int) -> None:
        """A subtask takes the next element of an input."""
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
                context = _Context(subtask, self._clock)
                self._give(stage, number, subtask.function.process_element(element, context))
        self._set_wake(subtask)

    def begin_checkpoint(self) -> None:
        """The source sends a barrier."""
        self._barriers += 1
        self._snapshots[self._barriers] = _Snapshot(self._read, [KeyedState() for _ in self._stages])
        for subtask in self._stages[0]:
            subtask.inputs[0].append(_Barrier(self._barriers))

    def checkpoint_at_once(self) -> None:
        """An unaligned checkpoint: what is on its way is in it. Any that is under way is given up."""
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
                # Flink says a watermark anew; that of the source follows from its place.
                if not isinstance(element, _Watermark)
            )
            for subtasks in self._stages
        )
        self.newest = Checkpoint(self._read, tuple(states), on_the_way, self.outputs)

    def pass_time(self, seconds: float) -> None:
        """Time passes, and processing-time timers that are due fire, at each subtask in turn."""
        self._clock.advance(seconds)
        for stage, subtasks in enumerate(self._stages):
            for number, subtask in enumerate(subtasks):
                if subtask.wakes_for_ms is not None and subtask.wakes_s <= self._clock.monotonic_s():
                    self._fire_wall(stage, number)

    def finish(self, choose: Callable[[int], int] = lambda _: 0) -> None:
        """Run to the end, taking elements as `choose` says, which is given how many there are."""
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
        for output in outputs or ():
            if stage + 1 == len(self._stages) or isinstance(output, tuple):
                self._made.append(((stage, number), output))
            else:
                for each in self._stages[stage + 1][0].operator.prepare(output):
                    self._to(stage + 1, number, each)

    def _move(self, stage: int, number: int, to_ms: int) -> None:
        subtask = self._stages[stage][number]
        if to_ms <= subtask.low_ms:
            return
        subtask.low_ms = to_ms
        firings = count()
        while subtask.state.event and subtask.state.event[0][0] <= to_ms:
            assert next(firings) < MOST_FIRINGS, "an operator sets timers without end"
            time_ms, subtask.key = subtask.state.event.pop(0)
            context = _Context(subtask, self._clock, TimeDomain.EVENT_TIME)
            self._give(stage, number, subtask.function.on_timer(time_ms, context))
        self._mark(stage + 1, number, to_ms)

    def _fire_wall(self, stage: int, number: int) -> None:
        """As Flink's timer service does: it was set for one time, and fires all timers up to that one."""
        subtask = self._stages[stage][number]
        until_ms = subtask.wakes_for_ms
        assert until_ms is not None
        firings = count()
        while subtask.state.wall and subtask.state.wall[0][0] <= until_ms:
            assert next(firings) < MOST_FIRINGS, "an operator sets timers without end"
            time_ms, subtask.key = subtask.state.wall.pop(0)
            context = _Context(subtask, self._clock, TimeDomain.PROCESSING_TIME)
            self._give(stage, number, subtask.function.on_timer(time_ms, context))
            # Where the clock was set back, a timer that is set anew fires in the same round, time and again.
            self._clock.advance(0.001)
            self._while_firing()
        subtask.wakes_for_ms = None
        self._set_wake(subtask)

    def _set_wake(self, subtask: _Subtask) -> None:
        if not subtask.state.wall:
            return
        first_ms = subtask.state.wall[0][0]
        if subtask.wakes_for_ms is None or first_ms < subtask.wakes_for_ms:
            # By the wall clock of now: where that is set later, the wait is what it was.
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
    """A checkpoint under way. `outputs`: how many each subtask had given when its barrier came."""

    read: int
    states: list[KeyedState]
    outputs: dict[tuple[int, int], int] = field(default_factory=dict)


class _Context:
    """What Flink gives a function, of a whole run or of one call: state, timers and the key in hand."""

    def __init__(self, subtask: _Subtask, clock: WallClock, domain: TimeDomain | None = None) -> None:
        self._subtask = subtask
        self._clock = clock
        self._domain = domain

    def get_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)

        def update(value: Any) -> None:
            by_key[self._subtask.key] = pickle.dumps(value)

        return SimpleNamespace(value=lambda: _read(by_key.get(self._subtask.key)), update=update)

    def get_list_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)
        return SimpleNamespace(
            get=lambda: [_read(data) for data in by_key.get(self._subtask.key, ())],
            add=lambda value: by_key.setdefault(self._subtask.key, []).append(pickle.dumps(value)),
            clear=lambda: by_key.pop(self._subtask.key, None),
        )

    def get_map_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)

        def mine() -> dict[str, bytes]:
            found: dict[str, bytes] = by_key.setdefault(self._subtask.key, {})
            return found

        return SimpleNamespace(
            get=lambda name: _read(mine().get(name)),
            put=lambda name, value: mine().__setitem__(name, pickle.dumps(value)),
            remove=lambda name: mine().pop(name, None),
            contains=lambda name: name in mine(),
            items=lambda: [(name, _read(data)) for name, data in mine().items()],
        )

    def get_metrics_group(self) -> Any:
        counter = SimpleNamespace(inc=lambda n=1: None, update=lambda n: None)
        group = SimpleNamespace(counter=lambda _: counter, distribution=lambda _: counter)
        return SimpleNamespace(add_group=lambda *_: group)

    def get_current_key(self) -> int:
        return self._subtask.key

    def time_domain(self) -> TimeDomain | None:
        return self._domain

    def timer_service(self) -> Any:
        subtask = self._subtask
        return SimpleNamespace(
            register_event_time_timer=lambda time_ms: _set(subtask.state.event, time_ms, subtask.key),
            register_processing_time_timer=lambda time_ms: _set(subtask.state.wall, time_ms, subtask.key),
            current_watermark=lambda: subtask.low_ms,
            current_processing_time=self._clock.wall_ms,
        )

    def _by_key(self, descriptor: Any) -> dict[int, Any]:
        return self._subtask.state.values.setdefault(descriptor.get_name(), {})


def held_keys(context: Any, *states: str) -> Iterator[tuple[int, Any]]:
    """A stand-in for `forebay.operators.held_keys.held_keys`, which asks Flink: as it promises."""
    subtask = context._subtask
    found = {key for name in states for key, held in subtask.state.values.get(name, {}).items() if held}
    before = subtask.key
    try:
        for subtask.key in sorted(found):
            yield subtask.key, context
    finally:
        subtask.key = before


def _set(timers: Timers, time_ms: int, key: int) -> None:
    if (time_ms, key) not in timers:
        insort(timers, (time_ms, key))


def _read(data: bytes | None) -> Any:
    return None if data is None else pickle.loads(data)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value
