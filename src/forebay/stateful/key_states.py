"""What a shard remembers of its keys, and when to look at each key: for its timers, or to forget it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgpack

from forebay.codec import damaged, pack_state, unpack_state
from forebay.errors import ForebayError, ProgramFailed, StateTooLarge
from forebay.stateful.machine import Effect, HoldWatermark, Store, WakeAt
from forebay.stateful.program import Program, Step, TimeDomain, Timer
from forebay.stateful.turns import Firing, KeyMemory, SetTimer, digest, pack_memory, unpack_memory

STEP_MS = 100
PER_CHUNK = 64
HEAD = "d"
WHAT = "timers of keys"


def rounded_up_ms(time_ms: int) -> int:
    return -(-time_ms // STEP_MS) * STEP_MS


def head_name(time_ms: int) -> str:
    return f"until:{time_ms}"


def head(clock: TimeDomain, time_ms: int) -> list[Effect]:
    if clock == "wall":
        return [WakeAt(clock, time_ms)]
    # Results of a timer may carry its time, which is at most a step earlier.
    return [HoldWatermark(head_name(time_ms), time_ms - STEP_MS + 1, None), WakeAt(clock, time_ms)]


@dataclass(slots=True)
class Head:
    count: int = 0
    taken: int = 0
    until: int = 0


class Due:
    """The keys of a shard that have timers, by the time at which to look at them.

    Flink wakes a shard at a time and does not name the key. Due keys are taken in chunks, as there is room
    for their calls.
    """

    def __init__(self, work: Store, due: Store) -> None:
        self._work = work
        self._due = due
        self.heads: dict[tuple[TimeDomain, int], Head] = {}
        self._reached: dict[tuple[TimeDomain, int], None] = {}

    def restore(self, name: str, value: bytes) -> bool:
        if not name.startswith(HEAD):
            return False
        try:
            clock, time_ms, count, taken, until = unpack_state(value, WHAT)
        except ValueError as error:
            raise damaged(WHAT, error) from None
        head = self.heads[clock, time_ms] = Head(count, taken, until)
        if head.until:
            self._reached[clock, time_ms] = None
        return True

    def restored(self) -> None:
        self._reached = dict.fromkeys(sorted(self._reached, key=lambda at: at[1]))

    def add(self, clock: TimeDomain, time_ms: int, key: str) -> bool:
        head = self.heads.get((clock, time_ms))
        first = head is None
        head = head or Head()
        name = _chunk(clock, time_ms, head.count // PER_CHUNK)
        chunk = msgpack.unpackb(self._due.get(name) or b"\x90") if head.count % PER_CHUNK else []
        self._due.put(name, msgpack.packb([*chunk, key]))
        head.count += 1
        self._keep(clock, time_ms, head)
        return first

    def mark_due(self, clock: TimeDomain, time_ms: int) -> None:
        head = self.heads.get((clock, time_ms))
        if head is not None and not head.until:
            head.until = head.count
            self._reached[clock, time_ms] = None
            self._keep(clock, time_ms, head)

    @property
    def first(self) -> tuple[TimeDomain, int] | None:
        return next(iter(self._reached), None)

    def has_reached(self, clock: TimeDomain, time_ms: int) -> bool:
        return (clock, time_ms) in self._reached

    def take(self) -> list[str]:
        clock, time_ms = at = next(iter(self._reached))
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
            del self._reached[at]
        if head.taken == head.count:
            del self.heads[at]
            self._work.remove(_head(clock, time_ms))
        else:
            self._keep(clock, time_ms, head)
        return keys

    def _keep(self, clock: TimeDomain, time_ms: int, head: Head) -> None:
        self.heads[clock, time_ms] = head
        entry = pack_state(clock, time_ms, head.count, head.taken, head.until)
        self._work.put(_head(clock, time_ms), entry)


def _head(clock: TimeDomain, time_ms: int) -> str:
    return f"{HEAD}{clock}:{time_ms}"


def _chunk(clock: TimeDomain, time_ms: int, number: int) -> str:
    return f"{clock}:{time_ms}:{number}"


S = TypeVar("S")
CLOCKS: tuple[TimeDomain, TimeDomain] = ("event", "wall")
FARTHEST_MS = 1 << 52
"""Bound of timers, 140,000 years from 1970: Flink's times have 64 bits."""


@dataclass(frozen=True, slots=True)
class Stores:
    """`keys`: what each key remembers; never scanned. `due`: keys by time in chunks, forgotten ones too.

    `work`: calls in flight, waiting turns, and times of timers; read as a whole after a restore.
    """

    keys: Store
    work: Store
    due: Store


@dataclass(frozen=True, slots=True)
class StateLimits:
    """`ttl_s`: a key is forgotten this long after its last step (wall clock; None: never).

    `max_state_bytes`: of a key's saved state and timers. `queue`: events of a key that may wait for its call;
    `shard_queue`: of all.
    """

    ttl_s: float | None = None
    max_state_bytes: int = 262_144
    queue: int = 64
    shard_queue: int = 1024


class KeyStateStore(Generic[S]):
    """The memories of a shard's keys.

    A forgotten key keeps its noted times until they are due, so that it is not noted twice when it returns.
    """

    def __init__(self, program: Program[S], limits: StateLimits, stores: Stores, due: Due) -> None:
        self._program = program
        self._limits = limits
        self._keys = stores.keys
        self._forgotten = stores.due
        self._due = due
        self.ending = False
        """The input has ended: every timer is due, and no key expires."""

    def recall(self, key: str) -> tuple[KeyMemory | None, Any]:
        memory = self._read(key)
        if memory is None or memory.saved is None:
            return memory, None
        try:
            return memory, self._program.load(memory.version, memory.saved)
        except ForebayError:
            raise
        except Exception as error:
            raise ForebayError(
                f"the program cannot load the state of key {key!r} that its version {memory.version} saved: "
                f"{type(error).__name__}: {error}"
            ) from error

    def changed(self, memory: KeyMemory | None, step: Step[S], by: str, wall_ms: int) -> KeyMemory:
        """Raises `StateTooLarge`."""
        noted = {} if memory is None else {clock: list(times) for clock, times in memory.noted.items()}
        if step.state is None:
            return KeyMemory(self._program.version, None, noted=noted)
        saved = self._program.save(step.state)
        if saved is None:
            raise ProgramFailed("save() returned None for a state")
        timers = {} if memory is None else dict(memory.timers)
        for name, timer in step.timers.items():
            before = timers.pop(name, None)
            if timer is not None:
                wanted = _set(timer, by)
                # A timer set to the same time again is the same timer: if it has fired, it stays fired.
                same = before is not None and (before.clock, before.time_ms) == (wanted.clock, wanted.time_ms)
                timers[str(name)] = before if before is not None and same else wanted
        kept = KeyMemory(self._program.version, saved, timers, noted, wall_ms)
        size = len(pack_memory(kept))
        if size > self._limits.max_state_bytes:
            raise StateTooLarge(
                f"the key's state and timers take {size} bytes; the limit is {self._limits.max_state_bytes}"
            )
        return kept

    def remember(
        self, key: str, memory: KeyMemory, effects: list[Effect], *, before: KeyMemory | None
    ) -> None:
        was_forgotten = before is not None and before.saved is None
        if memory.saved is not None:
            self._note(key, memory, effects)
            self._keys.put(key, pack_memory(memory))
        elif before is not None and not was_forgotten:
            self._keys.remove(key)
        if memory.saved is None and memory.noted:
            self._forgotten.put(_forgotten(key), pack_memory(memory))
        elif was_forgotten:
            self._forgotten.remove(_forgotten(key))

    def noted(self, key: str) -> list[tuple[TimeDomain, int]]:
        memory = self._read(key)
        times = {} if memory is None else memory.noted
        return sorted(((clock, t) for clock in CLOCKS for t in times.get(clock, ())), key=lambda at: at[1])

    def look_at(
        self, key: str, clock: TimeDomain, time_ms: int, wall_ms: int, effects: list[Effect], *, busy: bool
    ) -> list[Firing]:
        memory = self._read(key)
        if memory is None or time_ms not in memory.noted.get(clock, ()):
            return []
        before = replace(memory)
        memory.noted[clock].remove(time_ms)
        if not memory.noted[clock]:
            del memory.noted[clock]
        if self.ending:
            memory.noted.clear()
        due = sorted(
            (timer.time_ms, name)
            for name, timer in memory.timers.items()
            if not timer.fired and (self.ending or (timer.clock == clock and timer.time_ms <= time_ms))
        )
        if clock == "wall" and not due and memory.saved is not None and not self.ending:
            if busy:
                memory.touched_ms = wall_ms
            elif self._limits.ttl_s is not None and self._expires_ms(memory) <= time_ms:
                memory = KeyMemory(memory.version, None, noted=memory.noted)
        firings = [memory.timers[name].firing(name) for _, name in due]
        for firing in firings:
            memory.timers[firing.name].fired = True
        self.remember(key, memory, effects, before=before)
        return firings

    def _read(self, key: str) -> KeyMemory | None:
        data = self._keys.get(key) or self._forgotten.get(_forgotten(key))
        return None if data is None else unpack_memory(data)

    def _note(self, key: str, memory: KeyMemory, effects: list[Effect]) -> None:
        for clock in CLOCKS:
            times = [t.time_ms for t in memory.timers.values() if t.clock == clock and not t.fired]
            if clock == "wall" and self._limits.ttl_s is not None and not self.ending:
                times.append(self._expires_ms(memory))
            if not times:
                continue
            wanted = rounded_up_ms(min(times))
            noted = memory.noted.setdefault(clock, [])
            if any(time_ms <= wanted for time_ms in noted):
                # A postponed timer is found when its key is looked at; each event may postpone one.
                continue
            noted.append(wanted)
            if self._due.add(clock, wanted, key):
                effects += head(clock, wanted)

    def _expires_ms(self, memory: KeyMemory) -> int:
        assert self._limits.ttl_s is not None
        return memory.touched_ms + round(self._limits.ttl_s * 1000)


def _forgotten(key: str) -> str:
    return f"forgotten:{key}"


def _set(timer: Timer, by: str) -> SetTimer:
    if timer.clock not in CLOCKS:
        raise ProgramFailed(f"a timer's clock is event or wall, found {timer.clock!r}")
    return SetTimer(timer.clock, min(FARTHEST_MS, max(-FARTHEST_MS, int(timer.time_ms))), digest(by))
