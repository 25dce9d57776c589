"""What Flink gives a keyed function, without Flink: state and timers by key, a clock that may be set, and
calls that a test answers, on its own thread; and for sources, which have one key, state
that is kept as bytes between runs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from pyflink.datastream import TimeDomain

from forebay.flink.one_core import OneCore
from forebay.flink.request_pool import Answer, Handler, Ordering, RequestPool
from forebay.flink.shards import subtask_of
from forebay.records import KeyedEvent

Timers = list[tuple[int, int]]
"""Time and key, in order: equal times by key."""


class WallClock:
    """One machine's time: monotonic, and a wall clock that may be set."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._passed_ms = 0
        self._wall_ms = wall_ms

    def monotonic_s(self) -> float:
        return self._passed_ms / 1000

    def wall_ms(self) -> int:
        return self._wall_ms + self._passed_ms

    def wall_us(self) -> int:
        return self.wall_ms() * 1000

    def advance(self, seconds: float) -> None:
        self._passed_ms += round(seconds * 1000)

    def step(self, ms: int) -> None:
        self._wall_ms += ms


@dataclass
class KeyedState:
    """Flink's state of one keyed function: values as bytes, by name, key and place; timers."""

    values: dict[str, dict[int, Any]] = field(default_factory=dict)
    event: Timers = field(default_factory=list)
    wall: Timers = field(default_factory=list)

    def copy(self) -> KeyedState:
        values = {name: {key: _copied(one) for key, one in by.items()} for name, by in self.values.items()}
        return KeyedState(values, list(self.event), list(self.wall))

    def part(self, subtask: int, parallelism: int) -> KeyedState:
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


class Subtask(Protocol):
    """The owner of the state: its watermark, and the current key; `later`: timers that are set only when due,
    with their monotonic time."""

    state: KeyedState
    later: list[tuple[float, int, int]]
    low_ms: int
    key: int


class Context:
    """Flink's context for a function, of a whole run or of one call: state, timers and the current key."""

    def __init__(self, subtask: Subtask, clock: WallClock, domain: TimeDomain | None = None) -> None:
        self._subtask = subtask
        self._clock = clock
        self._domain = domain

    def get_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)

        def update(value: Any) -> None:
            by_key[self._subtask.key] = bytes_only(value)

        return SimpleNamespace(value=lambda: by_key.get(self._subtask.key), update=update)

    def get_list_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)
        return SimpleNamespace(
            get=lambda: list(by_key.get(self._subtask.key, ())),
            add=lambda value: by_key.setdefault(self._subtask.key, []).append(bytes_only(value)),
            clear=lambda: by_key.pop(self._subtask.key, None),
        )

    def get_map_state(self, descriptor: Any) -> Any:
        by_key = self._by_key(descriptor)

        def mine() -> dict[str, bytes]:
            found: dict[str, bytes] = by_key.setdefault(self._subtask.key, {})
            return found

        return SimpleNamespace(
            get=lambda name: mine().get(name),
            put=lambda name, value: mine().__setitem__(name, bytes_only(value)),
            remove=lambda name: mine().pop(name, None),
            contains=lambda name: name in mine(),
            items=lambda: list(mine().items()),
        )

    def get_metrics_group(self) -> Any:
        counter = SimpleNamespace(inc=lambda n=1: None, update=lambda n: None)
        group = SimpleNamespace(counter=lambda _: counter, distribution=lambda _: counter)
        group.add_group = lambda *_: group
        return group

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
    """Replaces `forebay.flink.jvm_task.held_keys`, with Flink's guarantees."""
    subtask = context._subtask
    found = {key for name in states for key, held in subtask.state.values.get(name, {}).items() if held}
    before = subtask.key
    try:
        for subtask.key in sorted(found):
            yield subtask.key, context
    finally:
        subtask.key = before


def set_after_round(context: Any, ctx: Any, time_ms: int) -> None:
    """Replaces `forebay.flink.jvm_task.set_after_round`."""
    subtask, clock = context._subtask, context._clock
    insort(
        subtask.later,
        (clock.monotonic_s() + max(0, time_ms - clock.wall_ms()) / 1000, time_ms, subtask.key),
    )


def _set(timers: Timers, time_ms: int, key: int) -> None:
    if (time_ms, key) not in timers:
        insort(timers, (time_ms, key))


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value


AnswerTo = Callable[[KeyedEvent], Answer]


class ChosenCalls(RequestPool):
    """`RequestPool` without its thread: slots, room and release are the real ones. `out` are the
    calls in flight, in the order of their starts; `answer` answers one."""

    def __init__(
        self,
        open_answerer: Callable[[], Awaitable[Handler]],
        *,
        capacity: int,
        ordering: Ordering = "unordered",
        answer_to: AnswerTo,
        clock: WallClock,
        on_ready: Callable[[], None] = lambda: None,
        core: OneCore | None = None,
    ) -> None:
        super().__init__(open_answerer, capacity=capacity, ordering=ordering, on_ready=on_ready, core=core)
        self._loop.close()
        self._loop: Any = _NoLoop()
        self._answer_to = answer_to
        self._clock = clock
        self.out: list[tuple[int, KeyedEvent]] = []

    def start(self) -> None:
        pass

    def close(self) -> None:
        self.out.clear()

    def answer(self, which: int) -> bool:
        """Answer call number `which` (modulo their number); False if none is in flight."""
        if not self.out:
            return False
        shard, item = self.out.pop(which % len(self.out))
        self._finish(shard, item.id, self._answer_to(item))
        return True

    def _start_pending(self) -> None:
        self._waking = False
        while self._pending and self._in_flight < self._capacity:
            self._in_flight += 1
            self.out.append(self._pending.popleft())

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        if not condition():
            self._clock.advance(timeout_s)
            self.answer(0)
        return condition()


class _NoLoop:
    def __init__(self) -> None:
        self._now_s = 0.0

    def time(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        callback()

    call_soon = call_soon_threadsafe

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        callback()


class OneKeyContext:
    def __init__(self, states: dict[str, bytes] | None = None) -> None:
        self.states = {} if states is None else dict(states)
        self.event_timers: set[int] = set()
        self.counted = 0
        self.gauge: float | None = None

    def get_state(self, descriptor: Any) -> Any:
        name = descriptor.get_name()
        return SimpleNamespace(
            value=lambda: self.states.get(name),
            update=lambda value: self.states.update({name: bytes_only(value)}),
        )

    def get_map_state(self, descriptor: Any) -> Any:
        prefix = f"{descriptor.get_name()}/"
        return SimpleNamespace(
            put=lambda key, value: self.states.update({prefix + key: bytes_only(value)}),
            items=lambda: [
                (name.removeprefix(prefix), value)
                for name, value in self.states.items()
                if name.startswith(prefix)
            ],
        )

    def get_metrics_group(self) -> Any:
        return self

    def add_group(self, *_names: str) -> Any:
        return self

    def counter(self, _name: str) -> Any:
        return self

    distribution = counter

    def inc(self) -> None:
        self.counted += 1

    def update(self, value: float) -> None:
        self.gauge = value

    def timer_service(self) -> Any:
        return SimpleNamespace(register_event_time_timer=self.event_timers.add)


def bytes_only(value: Any) -> bytes:
    """Check a state value: Flink would drop any other type, or pickle it."""
    if type(value) is not bytes:
        raise TypeError(f"expected bytes for state, found {type(value).__name__}")
    return value


class Room:
    """Scripted room; always room after the script's end."""

    def __init__(self, *room: bool) -> None:
        self._room = list(room)
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self._room.pop(0) if self._room else True


class PlannedCalls:
    """Replaces the caller of a source: records how many calls a source plans, and makes none."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _env: Any, *, count: int, name: str) -> Any:
        self.count = count
        return self

    def process(self, *_: Any) -> Any:
        return self

    set_parallelism = name = process
