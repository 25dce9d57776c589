"""The machine of one shard: it decides over stores and returns effects, which the operator applies.

Each method changes the stores completely before it returns effects. So saving the stores between two calls
loses and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from forebay.codec import damaged, decode, encode, pack_state, unpack_state
from forebay.records import DeadLetter, KeyedEvent, Result
from forebay.stateful.program import TimeDomain


class Store(Protocol):
    """Bytes by name, of one shard: Flink's `MapState` in a job, `DictStore` in tests."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def remove(self, key: str) -> None: ...

    def clear(self) -> None: ...

    def items(self) -> Iterable[tuple[str, bytes]]: ...


class DictStore(dict[str, bytes]):
    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]


IN_FLIGHT = "in-flight"

# Effects are values, but not frozen: four are made for each event, and frozen ones take three times as long.


@dataclass(slots=True)
class StartCall:
    """`item.id` is unique among pending calls. `turn`: name of the event's hold.

    `restored`: it may have been sent before.
    """

    item: KeyedEvent
    restored: bool = False
    turn: str = field(kw_only=True)


@dataclass(slots=True)
class Emit:
    record: Result | DeadLetter
    data: bytes
    turn: str = field(kw_only=True)


@dataclass(slots=True)
class WakeAt:
    """Call `ShardMachine.mark_due`, then `fire`, when `clock` reaches `time_ms`."""

    clock: TimeDomain
    time_ms: int


@dataclass(slots=True)
class HoldWatermark:
    """Hold event time before `time_ms` until `name` is released. `read_ms` None: nothing was read for it."""

    name: str
    time_ms: int | None
    read_ms: int | None


@dataclass(slots=True)
class ReleaseWatermark:
    name: str


@dataclass(slots=True)
class CountFailure:
    cause: str


Effect = StartCall | Emit | WakeAt | HoldWatermark | ReleaseWatermark | CountFailure


def emits_letter(effects: Iterable[Effect], cause: str) -> bool:
    """Whether a call's failure became a dead letter; if not, a program continues.

    A letter with another cause is of a later failure: of a step, or of a refused call.
    """
    letters = (each.record for each in effects if isinstance(each, Emit))
    return any(isinstance(each, DeadLetter) and each.cause == cause for each in letters)


@dataclass(frozen=True, slots=True)
class Times:
    wall_ms: int
    watermark_ms: int | None = None


Clocks = Callable[[], Times]

Room = Literal["slot", "queue", "full key", "full shard"]


class ShardMachine(Protocol):
    """The default methods are those of a machine without queues and timers. Not thread-safe."""

    @property
    def awaiting(self) -> bool: ...

    @property
    def timers(self) -> bool:
        return False

    @property
    def due(self) -> bool:
        return False

    def room(self, key: str) -> Room:
        return "slot"

    def restore(self) -> Sequence[Effect]:
        """Called once, first. Emits nothing."""
        ...

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> Sequence[Effect]:
        """Take an event, even without room; `data` is `item` encoded."""
        ...

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> Sequence[Effect]: ...

    def mark_due(self, clock: TimeDomain, time_ms: int) -> None:
        return

    def mark_all_due(self) -> None:
        return

    def fire(self, clocks: Clocks) -> Sequence[Effect]:
        return ()


OpenMachines = Callable[[Callable[[str], Store]], Callable[[], ShardMachine]]
"""Takes a function that opens a store of Flink's current key by name. Returns one that makes a shard's
machine.
"""


REQUESTS = "requests"


def stateless(open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
    store = open_store(IN_FLIGHT)
    return lambda: StatelessExecutor(store)


class StatelessExecutor(ShardMachine):
    """One call per event. Accepted events stay in the store until their result is emitted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._in_flight: dict[str, bool] = {}
        self._next_seq = 0

    @property
    def awaiting(self) -> bool:
        return bool(self._in_flight)

    def restore(self) -> list[Effect]:
        effects: list[Effect] = []
        for seq, id, data in sorted(_unpack(entry) for _, entry in self._store.items()):
            self._next_seq = seq + 1
            effects += self._begin(replace(decode(data), id=id), restored=True)
        return effects

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> list[Effect]:
        if item.id in self._in_flight:
            item = replace(item, id=_free_id(item.id, self._in_flight))
        self._store.put(item.id, pack_state(self._next_seq, item.id, data))
        self._next_seq += 1
        return self._begin(item)

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> list[Effect]:
        self._store.remove(id)
        if self._in_flight.pop(id) and isinstance(answer, Result):
            answer = replace(answer, restored=True)
        return [ReleaseWatermark(id), Emit(answer, encode(answer), turn=id)]

    def _begin(self, item: KeyedEvent, *, restored: bool = False) -> list[Effect]:
        self._in_flight[item.id] = restored
        return [
            HoldWatermark(item.id, item.event.time_ms, item.read_ms),
            StartCall(item, restored, turn=item.id),
        ]


def _unpack(entry: bytes) -> tuple[int, str, bytes]:
    values = unpack_state(entry, REQUESTS)
    try:
        seq, id, data = values
    except ValueError as error:
        raise damaged(REQUESTS, error) from None
    return seq, id, data


def _free_id(id: str, taken: Container[str]) -> str:
    """Equal records without a position have equal ids: number those in flight."""
    number = 2
    while f"{id}#{number}" in taken:
        number += 1
    return f"{id}#{number}"
