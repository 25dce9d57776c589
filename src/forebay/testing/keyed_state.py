"""What Flink gives a keyed function, without Flink: state and timers by key, and a clock that may be set."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from pyflink.datastream import TimeDomain

from forebay.flink.shards import subtask_of
from forebay.testing.keyed import bytes_only

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


class Subtask(Protocol):
    """Who has the state: its watermark, and the key in hand; `later`: timers that are set once time has come
    to them, with the moment at which it has, on the clock that nobody sets."""

    state: KeyedState
    later: list[tuple[float, int, int]]
    low_ms: int
    key: int


class Context:
    """What Flink gives a function, of a whole run or of one call: state, timers and the key in hand."""

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
    """A stand-in for `forebay.flink.jvm_task.held_keys`, which asks Flink: as it promises."""
    subtask = context._subtask
    found = {key for name in states for key, held in subtask.state.values.get(name, {}).items() if held}
    before = subtask.key
    try:
        for subtask.key in sorted(found):
            yield subtask.key, context
    finally:
        subtask.key = before


def set_after_round(context: Any, ctx: Any, time_ms: int) -> None:
    """A stand-in for `forebay.flink.jvm_task.set_after_round`."""
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
