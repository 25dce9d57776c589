"""Limits what each key spends in a day: decides before each call whether it may be made.

A key's spending is state of its shard, and changes together with the results that it paid for. Calls in
flight count at their maximum cost until their usage is known. A call that may fit then waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from forebay.codec import damaged, pack_state, unpack_state
from forebay.engine.prices import from_pico
from forebay.errors import OverBudget
from forebay.records import DeadLetter, KeyedEvent, Result
from forebay.stateful.machine import (
    Clocks,
    CountFailure,
    Effect,
    OpenMachines,
    Room,
    ShardMachine,
    StartCall,
    Store,
    emits_letter,
)
from forebay.stateful.program import TimeDomain
from forebay.stateful.turns import letter_of_item

Verdict = Literal["start", "wait", "refuse"]
AMOUNT = "spent"
SPENT = f"{AMOUNT}-even", f"{AMOUNT}-odd"
DAY = ""
MAX_WAITING = 64
DAY_MS = 86_400_000


class Ledger:
    """What the keys of a shard have spent, by the UTC day on which an answer arrived, and calls in flight.

    All amounts are in 10^-12 of the currency. Two stores take turns, so that yesterday stays, for a clock
    that is set back a little. Other days are dropped as a whole: a walk over 100,000 keys would block the
    shard.
    """

    def __init__(self, stores: Sequence[Store], ceiling_pico: int) -> None:
        self._stores = stores
        self._ceiling_pico = ceiling_pico
        self._days: list[int] | None = None
        self._calls: dict[tuple[str, str], int] = {}
        self._held: dict[str, int] = {}

    def spent_pico(self, key: str, now_ms: int) -> int:
        day = now_ms // DAY_MS
        slot = day % len(self._stores)
        return _read(self._stores[slot], key) if self.days()[slot] == day else 0

    def days(self) -> list[int]:
        if self._days is None:
            self._days = [_read(store, DAY) for store in self._stores]
        return self._days

    def verdict(self, key: str, most_pico: int, now_ms: int) -> Verdict:
        """Decide on a call that may cost `most_pico`. It waits only if a call of its key is in flight."""
        left = self._ceiling_pico - self.spent_pico(key, now_ms) - most_pico
        return "refuse" if left < 0 else "start" if left >= self._held.get(key, 0) else "wait"

    def refusal(self, key: str, most_pico: int, now_ms: int) -> str:
        spent, held = self.spent_pico(key, now_ms), self._held.get(key, 0)
        return (
            f"the key has spent {from_pico(spent)} of {from_pico(self._ceiling_pico)} today (UTC); its calls "
            f"in flight may cost {from_pico(held)}, and this one {from_pico(most_pico)}: raise "
            f"budget.per_key_per_day, or feed the record in again tomorrow"
        )

    def fits(self, key: str, most_pico: int) -> bool:
        return all(self.verdict(key, most_pico, day * DAY_MS) == "start" for day in self.days())

    def holds(self, key: str) -> bool:
        return key in self._held

    def hold(self, key: str, id: str, most_pico: int) -> None:
        if most_pico:
            self._held[key] = self._held.get(key, 0) + most_pico
        self._calls[key, id] = most_pico

    def settle(self, key: str, id: str, cost_pico: int, now_ms: int) -> None:
        most_pico = self._calls.pop((key, id))
        if held := self._held.pop(key, 0) - most_pico:
            self._held[key] = held
        if cost_pico:
            spent_pico, day = self.spent_pico(key, now_ms), now_ms // DAY_MS
            slot, days = day % len(self._stores), self.days()
            for number, store in enumerate(self._stores):
                if days[number] and abs(days[number] - day) > 1:
                    store.clear()
                    days[number] = 0
            if not days[slot]:
                self._stores[slot].put(DAY, pack_state(day))
                days[slot] = day
            self._stores[slot].put(key, pack_state(spent_pico + cost_pico))


def _read(store: Store, name: str) -> int:
    data = store.get(name)
    if data is None:
        return 0
    try:
        (number,) = unpack_state(data, AMOUNT)
        return int(number)
    except (ValueError, TypeError) as error:
        raise damaged(AMOUNT, error) from None


@dataclass(frozen=True)
class BudgetedMachines:
    machines: OpenMachines
    per_key_per_day_pico: int
    most_pico: Callable[[KeyedEvent], int]

    def __call__(self, open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
        machine, stores = self.machines(open_store), [open_store(name) for name in SPENT]
        return lambda: BudgetedMachine(machine(), Ledger(stores, self.per_key_per_day_pico), self.most_pico)


class BudgetedMachine(ShardMachine):
    """Another machine, whose calls beyond the limit fail with the cause `budget`.

    Waiting calls start in order. After a restore, the calls that were in flight are in flight again. If the
    limit was lowered since, one call for each key may exceed it.
    """

    def __init__(self, inner: ShardMachine, ledger: Ledger, most_pico: Callable[[KeyedEvent], int]) -> None:
        self._inner = inner
        self._ledger = ledger
        self._most_pico = most_pico
        self._waiting: dict[str, deque[tuple[StartCall, int]]] = {}

    @property
    def awaiting(self) -> bool:
        return self._inner.awaiting

    @property
    def timers(self) -> bool:
        return self._inner.timers

    @property
    def due(self) -> bool:
        return self._inner.due

    def room(self, key: str) -> Room:
        waits = len(self._waiting.get(key, ()))
        return self._inner.room(key) if not waits else "queue" if waits < MAX_WAITING else "full key"

    def restore(self) -> list[Effect]:
        given = list[Effect]()
        for effect in self._inner.restore():
            if not isinstance(effect, StartCall):
                given.append(effect)
                continue
            key, most_pico = effect.item.key, self._most_pico(effect.item)
            fits = key not in self._waiting and self._ledger.fits(key, most_pico)
            if most_pico and not fits and self._ledger.holds(key):
                self._waiting.setdefault(key, deque()).append((effect, most_pico))
            else:
                self._ledger.hold(key, effect.item.id, most_pico)
                given.append(effect)
        return given

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> list[Effect]:
        return self._within(self._inner.event(item, data, clocks), clocks)

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> list[Effect]:
        key = answer.key
        assert key is not None
        self._ledger.settle(key, id, answer.cost_pico or 0, clocks().wall_ms)
        given = self._within(self._inner.answered(id, answer, clocks), clocks)
        return given + self._within(self._start_waiting(key, given, clocks), clocks)

    def mark_due(self, clock: TimeDomain, time_ms: int) -> None:
        self._inner.mark_due(clock, time_ms)

    def mark_all_due(self) -> None:
        self._inner.mark_all_due()

    def fire(self, clocks: Clocks) -> list[Effect]:
        return self._within(self._inner.fire(clocks), clocks)

    def _within(self, effects: Iterable[Effect], clocks: Clocks) -> list[Effect]:
        left, given = deque(effects), list[Effect]()
        while left:
            effect = left.popleft()
            if not isinstance(effect, StartCall):
                given.append(effect)
                continue
            key, most_pico = effect.item.key, self._most_pico(effect.item)
            if not most_pico:
                # It is free, or cannot be made: the handler finds the cause.
                self._ledger.hold(key, effect.item.id, 0)
                given.append(effect)
                continue
            queue = self._waiting.setdefault(key, deque())
            if len(queue) < MAX_WAITING:
                queue.append((effect, most_pico))
                following = self._start_waiting(key, given, clocks)
            else:
                reason = f"{MAX_WAITING} calls of the key wait for those in flight; "
                following = self._refused(effect, most_pico, given, clocks, reason)
            left.extendleft(reversed(following))
        return given

    def _start_waiting(self, key: str, given: list[Effect], clocks: Clocks) -> Sequence[Effect]:
        """Add the calls of `key` that start now to `given`; return what follows from refused ones."""
        queue, following = self._waiting.get(key), list[Effect]()
        while queue:
            effect, most_pico = queue[0]
            verdict = self._ledger.verdict(key, most_pico, clocks().wall_ms)
            if verdict == "wait":
                return following
            queue.popleft()
            if verdict == "start":
                self._ledger.hold(key, effect.item.id, most_pico)
                given.append(effect)
            else:
                following += self._refused(effect, most_pico, given, clocks)
        self._waiting.pop(key, None)
        return following

    def _refused(
        self, effect: StartCall, most_pico: int, given: list[Effect], clocks: Clocks, reason: str = ""
    ) -> Sequence[Effect]:
        item = effect.item
        refusal = self._ledger.refusal(item.key, most_pico, clocks().wall_ms)
        letter = letter_of_item(item, OverBudget.cause, f"budget: {reason}{refusal}", attempts=0)
        following = self._inner.answered(item.id, letter, clocks)
        if not emits_letter(following, letter.cause):
            # A program continues without the answer.
            given.append(CountFailure(letter.cause))
        return following
