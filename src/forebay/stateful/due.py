"""Which keys of a shard have a timer, by the time at which to look at them.

Flink wakes a shard at a time and does not say for whom. A shard may have very many keys, so what is written
for one of them must not grow with their number, and nothing may be searched.
"""

from __future__ import annotations

import msgpack

from forebay.stateful.program import Clock
from forebay.stateful.stores import Store

STEP_MS = 100
"""Times are rounded up to a multiple of it, so that a shard is woken at most so often."""
PER_CHUNK = 64
HEAD = "d"


def rounded_up_ms(time_ms: int) -> int:
    """The next multiple of `STEP_MS`."""
    return -(-time_ms // STEP_MS) * STEP_MS


class Due:
    """Times with keys to look at. `heads` has the number of keys for each time."""

    def __init__(self, work: Store, due: Store) -> None:
        self._work = work
        self._due = due
        self.heads: dict[tuple[Clock, int], int] = {}

    def restore(self, name: str, value: bytes) -> bool:
        """Take up an entry of `work` if it is a head."""
        if not name.startswith(HEAD):
            return False
        clock, time_ms, count = msgpack.unpackb(value)
        self.heads[clock, time_ms] = count
        return True

    def add(self, clock: Clock, time_ms: int, key: str) -> bool:
        """Note `key` for `time_ms`, a multiple of `STEP_MS`; whether it is the first there."""
        count = self.heads.get((clock, time_ms), 0)
        name = _chunk(clock, time_ms, count // PER_CHUNK)
        chunk = msgpack.unpackb(self._due.get(name) or b"\x90") if count % PER_CHUNK else []
        self._due.put(name, msgpack.packb([*chunk, key]))
        self._head(clock, time_ms, count + 1)
        return not count

    def take(self, clock: Clock, time_ms: int) -> list[str]:
        """The keys noted for `time_ms`, in the order of their noting; none is noted any more."""
        count = self.heads.pop((clock, time_ms), 0)
        keys: list[str] = []
        for number in range(-(-count // PER_CHUNK)):
            name = _chunk(clock, time_ms, number)
            keys += msgpack.unpackb(self._due.get(name) or b"\x90")
            self._due.remove(name)
        if count:
            self._work.remove(_head(clock, time_ms))
        return keys

    def _head(self, clock: Clock, time_ms: int, count: int) -> None:
        self.heads[clock, time_ms] = count
        self._work.put(_head(clock, time_ms), msgpack.packb((clock, time_ms, count)))


def _head(clock: Clock, time_ms: int) -> str:
    return f"{HEAD}{clock}:{time_ms}"


def _chunk(clock: Clock, time_ms: int, number: int) -> str:
    return f"{clock}:{time_ms}:{number}"
