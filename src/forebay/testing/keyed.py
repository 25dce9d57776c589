"""What Flink gives a keyed function of one key, without Flink: its state is kept as bytes between runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Context:
    """Runtime context and call context in one. `states` outlives a run, as in a checkpoint."""

    def __init__(self, states: dict[str, bytes] | None = None) -> None:
        self.states = {} if states is None else dict(states)
        self.event_timers: set[int] = set()
        self.counted = 0

    def get_state(self, descriptor: Any) -> Any:
        name = descriptor.get_name()
        return SimpleNamespace(
            value=lambda: self.states.get(name),
            update=lambda value: self.states.update({name: bytes_only(value)}),
        )

    def get_metrics_group(self) -> Any:
        return self

    def add_group(self, _name: str) -> Any:
        return self

    def counter(self, _name: str) -> Any:
        return self

    def inc(self) -> None:
        self.counted += 1

    def timer_service(self) -> Any:
        return SimpleNamespace(register_event_time_timer=self.event_timers.add)


def bytes_only(value: Any) -> bytes:
    """What Flink keeps of a value of state: of any other kind it would keep none, or a pickle."""
    if type(value) is not bytes:
        raise TypeError(f"expected bytes for state, found {type(value).__name__}")
    return value


class Room:
    """Whether there is room, as a script says; where it has ended, there is."""

    def __init__(self, *room: bool) -> None:
        self._room = list(room)
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self._room.pop(0) if self._room else True


class PlannedCalls:
    """Stands in for `connectors.ticks.calls`: notes how many calls a source plans, and makes none."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _env: Any, *, count: int, name: str) -> Any:
        self.count = count
        return self

    def process(self, *_: Any) -> Any:
        return self

    set_parallelism = name = process
