"""What a shard's machine is: it decides, over stores, and the operator does what it says.

A machine knows neither Flink nor an engine. All that it knows lies in its stores; what it holds in memory is
made from them after a restore. Each method makes its whole change before it returns, and gives back effects:
what is to be done outside, in this order. So whoever saves the stores between two methods and throws the rest
away loses nothing and repeats nothing. The simplest machine is here too: inference without a program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from forebay.codec import damaged, decode, encode, pack_state, unpack_state
from forebay.records import DeadLetter, KeyedEvent, Result
from forebay.stateful.program import Clock


class Store(Protocol):
    """Bytes by name, of one shard: Flink's `MapState` in a job, `DictStore` in tests."""

    def get(self, key: str) -> bytes | None:
        """None where there is nothing."""
        ...

    def put(self, key: str, value: bytes) -> None: ...

    def remove(self, key: str) -> None: ...

    def items(self) -> Iterable[tuple[str, bytes]]: ...


class DictStore(dict[str, bytes]):
    """A `Store` in memory."""

    def put(self, key: str, value: bytes) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]


IN_FLIGHT = "in-flight"
"""The name of the store in which every machine keeps what a restore must take up."""

# The effects: values, though not frozen. Four are made for each event, which would take thrice as long.


@dataclass(slots=True)
class StartCall:
    """A call is to be made; `item.id` is its own as long as it is awaited. `restored`: a checkpoint
    held it; whether it had been sent before is not known."""

    item: KeyedEvent
    restored: bool = False


@dataclass(slots=True)
class Emit:
    """A record that leaves, and its bytes."""

    record: Result | DeadLetter
    data: bytes


@dataclass(slots=True)
class WakeAt:
    """`ShardMachine.come` is to be called once `clock` has reached `time_ms`."""

    clock: Clock
    time_ms: int


@dataclass(slots=True)
class HoldWatermark:
    """Something begins that event time must not pass: `name` stays until it is released. `read_ms` None:
    nothing was read for it."""

    name: str
    time_ms: int | None
    read_ms: int | None


@dataclass(slots=True)
class ReleaseWatermark:
    """What was held is over."""

    name: str


Effect = StartCall | Emit | WakeAt | HoldWatermark | ReleaseWatermark


@dataclass(frozen=True, slots=True)
class Times:
    """The wall clock, and the watermark (None where it promises nothing)."""

    wall_ms: int
    watermark_ms: int | None = None


Clocks = Callable[[], Times]
"""A look at the clocks. The watermark is Flink's: a machine that needs no times does not pay for the look."""

Room = Literal["slot", "queue", "full key", "full shard"]
"""What an event finds: it needs a slot for a call of its own; there is a place for it in a queue; there is
none, as the queue of its key is full, or all that may wait in the shard."""


class ShardMachine(Protocol):
    """The machine of one shard. Inherit from it for the parts that are given here: those of a machine without
    queues and timers. Not for several threads."""

    @property
    def awaiting(self) -> bool:
        """Whether a call is awaited."""
        ...

    @property
    def timers(self) -> bool:
        """Whether a timer is set; one that is due and has not fired is."""
        return False

    @property
    def due(self) -> bool:
        """Whether timers are due that have not fired: `fire` has something to do."""
        return False

    def room(self, key: str) -> Room:
        """What an event of `key` would find now."""
        return "slot"

    def restore(self) -> Sequence[Effect]:
        """Once, before all else: take up what the stores hold, and the calls that were awaited. Nothing
        leaves."""
        ...

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> Sequence[Effect]:
        """An event came in; `data` is `item`'s encoding. It is taken even where there is no room for it."""
        ...

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> Sequence[Effect]:
        """The call `id` was answered, or given up."""
        ...

    def come(self, clock: Clock, time_ms: int) -> None:
        """Time has come to `time_ms`: the timers set for it are due. Without effect where none is."""
        return

    def come_all(self) -> None:
        """At the end of the input: every timer that is set is due."""
        return

    def fire(self, clocks: Clocks) -> Sequence[Effect]:
        """Fire some of the timers that are due. Those that are left stay `due`, also in the stores."""
        return ()


OpenMachines = Callable[[Callable[[str], Store]], Callable[[], ShardMachine]]
"""Given what opens a store by its name, gives what makes the machine of a shard. The stores are those of the
shard in hand. Picklable."""


REQUESTS = "requests"


def stateless(open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
    """The `OpenMachines` of inference without a program."""
    store = open_store(IN_FLIGHT)
    return lambda: StatelessExecutor(store)


class StatelessExecutor(ShardMachine):
    """One shard of the simplest machine: each event is a call, whose answer is its result. What is accepted
    rests in its store until its answer has left.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._in_flight: dict[str, bool] = {}
        self._next_seq = 0

    @property
    def awaiting(self) -> bool:
        return bool(self._in_flight)

    def restore(self) -> list[Effect]:
        """Start the calls in the order in which their events were accepted."""
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
        return [ReleaseWatermark(id), Emit(answer, encode(answer))]

    def _begin(self, item: KeyedEvent, *, restored: bool = False) -> list[Effect]:
        self._in_flight[item.id] = restored
        return [HoldWatermark(item.id, item.event.time_ms, item.read_ms), StartCall(item, restored)]


def _unpack(entry: bytes) -> tuple[int, str, bytes]:
    values = unpack_state(entry, REQUESTS)
    try:
        seq, id, data = values
    except ValueError as error:
        raise damaged(REQUESTS, error) from None
    return seq, id, data


def _free_id(id: str, taken: Container[str]) -> str:
    """Equal records without a position of their own have equal ids; those in flight at once are numbered."""
    number = 2
    while f"{id}#{number}" in taken:
        number += 1
    return f"{id}#{number}"
