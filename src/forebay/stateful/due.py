"""Which keys of a shard have a timer, by the time at which to look at them.

Flink wakes a shard at a time and does not say for whom. A shard may have very many keys, so what is written
for one of them must not grow with their number, and nothing may be searched. Once a time has come, its keys
are taken a chunk at a time: whoever takes them stops where there is no room for what they lead to.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from forebay.codec import not_pickled
from forebay.stateful.machine import Effect, HoldWatermark, Store, WakeAt
from forebay.stateful.program import Clock

STEP_MS = 100
"""Times are rounded up to a multiple of it, so that a shard is woken at most so often."""
PER_CHUNK = 64
HEAD = "d"


def rounded_up_ms(time_ms: int) -> int:
    """The next multiple of `STEP_MS`."""
    return -(-time_ms // STEP_MS) * STEP_MS


def head_name(time_ms: int) -> str:
    """What is held for the event-time timers that are looked at at `time_ms`."""
    return f"until:{time_ms}"


def head(clock: Clock, time_ms: int) -> list[Effect]:
    """The first timer for `time_ms` is set: see to it that it is looked at then, and not passed before."""
    if clock == "wall":
        return [WakeAt(clock, time_ms)]
    # What a timer leads to may carry its time, which is at most a step before.
    return [HoldWatermark(head_name(time_ms), time_ms - STEP_MS + 1, None), WakeAt(clock, time_ms)]


@dataclass(slots=True)
class Head:
    """The keys noted for a time: `count` so far, the first `taken` of them taken. The time has come for those
    before `until`."""

    count: int = 0
    taken: int = 0
    until: int = 0


class Due:
    """Times with keys to look at."""

    def __init__(self, work: Store, due: Store) -> None:
        self._work = work
        self._due = due
        self.heads: dict[tuple[Clock, int], Head] = {}
        self._come: dict[tuple[Clock, int], None] = {}

    def restore(self, name: str, value: bytes) -> bool:
        """Take up an entry of `work` if it is a head."""
        if not name.startswith(HEAD):
            return False
        # Older versions wrote no more than the count: they took all keys of a time at once.
        clock, time_ms, *counts = msgpack.unpackb(not_pickled(value, "keys' timers"))
        head = self.heads[clock, time_ms] = Head(*counts)
        if head.until:
            self._come[clock, time_ms] = None
        return True

    def restored(self) -> None:
        """All entries have been taken up."""
        self._come = dict.fromkeys(sorted(self._come, key=lambda at: at[1]))

    def add(self, clock: Clock, time_ms: int, key: str) -> bool:
        """Note `key` for `time_ms`, a multiple of `STEP_MS`; whether it is the first there."""
        head = self.heads.get((clock, time_ms))
        first = head is None
        head = head or Head()
        name = _chunk(clock, time_ms, head.count // PER_CHUNK)
        chunk = msgpack.unpackb(self._due.get(name) or b"\x90") if head.count % PER_CHUNK else []
        self._due.put(name, msgpack.packb([*chunk, key]))
        head.count += 1
        self._keep(clock, time_ms, head)
        return first

    def come(self, clock: Clock, time_ms: int) -> None:
        """Time has come to `time_ms`: the keys noted for it are there to be taken, behind those of times that
        came before. Those that are noted for it from now on are not among them."""
        head = self.heads.get((clock, time_ms))
        if head is not None and not head.until:
            head.until = head.count
            self._come[clock, time_ms] = None
            self._keep(clock, time_ms, head)

    @property
    def first(self) -> tuple[Clock, int] | None:
        """The time that is next to be taken from; None where no time has come."""
        return next(iter(self._come), None)

    def has_come(self, clock: Clock, time_ms: int) -> bool:
        """Whether keys of `time_ms` are there to be taken."""
        return (clock, time_ms) in self._come

    def take(self) -> list[str]:
        """Up to `PER_CHUNK` keys of the `first` time, in the order of their noting; they are noted for it no
        more. It must have come. Once all of them are taken, it is over, or waits to come again."""
        clock, time_ms = at = next(iter(self._come))
        head = self.heads[at]
        number, begin = divmod(head.taken, PER_CHUNK)
        name = _chunk(clock, time_ms, number)
        chunk: list[str] = msgpack.unpackb(self._due.get(name) or b"\x90")
        keys = chunk[begin : head.until - number * PER_CHUNK]
        head.taken = min(head.until, (number + 1) * PER_CHUNK)
        if head.taken in (head.count, (number + 1) * PER_CHUNK):
            self._due.remove(name)
        if head.taken == head.until:
            head.until = 0
            del self._come[at]
        if head.taken == head.count:
            del self.heads[at]
            self._work.remove(_head(clock, time_ms))
        else:
            self._keep(clock, time_ms, head)
        return keys

    def _keep(self, clock: Clock, time_ms: int, head: Head) -> None:
        self.heads[clock, time_ms] = head
        counts = (head.count, head.taken, head.until)
        self._work.put(_head(clock, time_ms), msgpack.packb((clock, time_ms, *counts)))


def _head(clock: Clock, time_ms: int) -> str:
    return f"{HEAD}{clock}:{time_ms}"


def _chunk(clock: Clock, time_ms: int, number: int) -> str:
    return f"{clock}:{time_ms}:{number}"
