"""The simplest machine: each event is a call, whose answer is its result."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from forebay.codec import damaged, decode, encode, pack_state, unpack_state
from forebay.records import DeadLetter, KeyedEvent, Result
from forebay.stateful.machine import (
    IN_FLIGHT,
    Clocks,
    Effect,
    Emit,
    HoldWatermark,
    ReleaseWatermark,
    ShardMachine,
    StartCall,
    Store,
)

STATE_VERSION = 1
REQUESTS = "requests"


def stateless(open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
    """The `OpenMachines` of inference without a program."""
    store = open_store(IN_FLIGHT)
    return lambda: StatelessExecutor(store)


class StatelessExecutor(ShardMachine):
    """One shard: what is accepted rests in its store until its answer has left."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._in_flight: set[str] = set()
        self._next_seq = 0

    @property
    def awaiting(self) -> bool:
        return bool(self._in_flight)

    def restore(self) -> list[Effect]:
        """The calls are made again in the order in which their events were accepted."""
        effects: list[Effect] = []
        for seq, id, data in sorted(_unpack(entry) for _, entry in self._store.items()):
            self._next_seq = seq + 1
            effects += self._begin(replace(decode(data), id=id), again=True)
        return effects

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> list[Effect]:
        if item.id in self._in_flight:
            item = replace(item, id=_free_id(item.id, self._in_flight))
        self._store.put(item.id, pack_state(STATE_VERSION, self._next_seq, item.id, data))
        self._next_seq += 1
        return self._begin(item)

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> list[Effect]:
        self._store.remove(id)
        self._in_flight.remove(id)
        return [ReleaseWatermark(id), Emit(answer, encode(answer))]

    def _begin(self, item: KeyedEvent, *, again: bool = False) -> list[Effect]:
        self._in_flight.add(item.id)
        return [HoldWatermark(item.id, item.event.time_ms, item.read_ms), StartCall(item, again)]


def _unpack(entry: bytes) -> tuple[int, str, bytes]:
    values = unpack_state(entry, STATE_VERSION, REQUESTS)
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
