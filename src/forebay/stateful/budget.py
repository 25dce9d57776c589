"""A ceiling of what each key spends in a day: decides before each call whether it may be made.

What a key has spent is state of its shard, changed together with the results that it paid for, so it is as
exact as they are. Calls in flight count at the most that they can cost, until their usage is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forebay.codec import damaged, pack_state, unpack_state
from forebay.engine.prices import from_pico
from forebay.errors import OverBudget
from forebay.records import DeadLetter, KeyedEvent, Result
from forebay.stateful.machine import (
    Clocks,
    CountFailure,
    Effect,
    Emit,
    OpenMachines,
    Room,
    ShardMachine,
    StartCall,
    Store,
)
from forebay.stateful.program import TimeDomain
from forebay.stateful.turns import letter_of_item

SPENT = "spent"
DAY_MS = 86_400_000


class Ledger:
    """What the keys of a shard have spent, by the UTC day on which an answer arrived, and what their calls in
    flight may cost. All amounts are in 10^-12 of the currency.

    Days before yesterday are dropped when a day begins; yesterday stays, for a clock that is set back a
    little.
    """

    def __init__(self, store: Store, ceiling_pico: int) -> None:
        self._store = store
        self._ceiling_pico = ceiling_pico
        self._day: int | None = None
        self._calls: dict[str, tuple[str, int]] = {}
        self._held: dict[str, int] = {}

    def spent_pico(self, key: str, now_ms: int) -> int:
        data = self._store.get(_name(now_ms // DAY_MS, key))
        if data is None:
            return 0
        try:
            (spent,) = unpack_state(data, SPENT)
            return int(spent)
        except (ValueError, TypeError) as error:
            raise damaged(SPENT, error) from None

    def refusal(self, key: str, most_pico: int, now_ms: int) -> str | None:
        """Why a call of `key` that may cost `most_pico` must not be made; None: it may."""
        spent, held = self.spent_pico(key, now_ms), self._held.get(key, 0)
        if spent + held + most_pico <= self._ceiling_pico:
            return None
        return (
            f"the key has spent {from_pico(spent)} of {from_pico(self._ceiling_pico)} today (UTC); its calls "
            f"in flight may cost {from_pico(held)}, and this one {from_pico(most_pico)}: raise "
            f"budget.per_key_per_day, or feed the record in again tomorrow"
        )

    def hold(self, id: str, key: str, most_pico: int) -> None:
        self._calls[id] = key, most_pico
        self._held[key] = self._held.get(key, 0) + most_pico

    def settle(self, id: str, cost_pico: int, now_ms: int) -> None:
        """The call `id` has ended, and cost so much."""
        key, most_pico = self._calls.pop(id)
        if held := self._held.pop(key, 0) - most_pico:
            self._held[key] = held
        day = now_ms // DAY_MS
        if day != self._day:
            self._day = day
            self._drop_old(day)
        if cost_pico:
            self._store.put(_name(day, key), pack_state(self.spent_pico(key, now_ms) + cost_pico))

    def _drop_old(self, day: int) -> None:
        for name in [name for name, _ in self._store.items()]:
            if abs(int(name.partition(":")[0]) - day) > 1:
                self._store.remove(name)


def _name(day: int, key: str) -> str:
    return f"{day}:{key}"


@dataclass(frozen=True)
class BudgetedMachines:
    """The `OpenMachines` of `machines` with a ceiling. `most_pico`: what a call may cost at most."""

    machines: OpenMachines
    per_key_per_day_pico: int
    most_pico: Callable[[KeyedEvent], int]

    def __call__(self, open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
        machine, store = self.machines(open_store), open_store(SPENT)
        return lambda: BudgetedMachine(machine(), Ledger(store, self.per_key_per_day_pico), self.most_pico)


class BudgetedMachine(ShardMachine):
    """Another machine, whose calls fail with the cause `budget` if they are beyond the ceiling.

    Calls that a checkpoint holds are made: they were within it.
    """

    def __init__(self, inner: ShardMachine, ledger: Ledger, most_pico: Callable[[KeyedEvent], int]) -> None:
        self._inner = inner
        self._ledger = ledger
        self._most_pico = most_pico

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
        return self._inner.room(key)

    def restore(self) -> list[Effect]:
        effects = list(self._inner.restore())
        for effect in effects:
            if isinstance(effect, StartCall):
                self._ledger.hold(effect.item.id, effect.item.key, self._most_pico(effect.item))
        return effects

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> list[Effect]:
        return self._within(self._inner.event(item, data, clocks), clocks)

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> list[Effect]:
        self._ledger.settle(id, answer.cost_pico or 0, clocks().wall_ms)
        return self._within(self._inner.answered(id, answer, clocks), clocks)

    def mark_due(self, clock: TimeDomain, time_ms: int) -> None:
        self._inner.mark_due(clock, time_ms)

    def mark_all_due(self) -> None:
        self._inner.mark_all_due()

    def fire(self, clocks: Clocks) -> list[Effect]:
        return self._within(self._inner.fire(clocks), clocks)

    def _within(self, effects: Iterable[Effect], clocks: Clocks) -> list[Effect]:
        """`effects`, with what follows from the failure of a call in place of one that must not be made."""
        left, given = deque(effects), list[Effect]()
        while left:
            effect = left.popleft()
            if not isinstance(effect, StartCall):
                given.append(effect)
                continue
            item, most_pico = effect.item, self._most_pico(effect.item)
            refusal = self._ledger.refusal(item.key, most_pico, clocks().wall_ms)
            if refusal is None:
                self._ledger.hold(item.id, item.key, most_pico)
                given.append(effect)
                continue
            letter = letter_of_item(item, OverBudget.cause, f"budget: {refusal}", attempts=0)
            following = self._inner.answered(item.id, letter, clocks)
            if not any(isinstance(each, Emit) and isinstance(each.record, DeadLetter) for each in following):
                # A program continues without the answer.
                given.append(CountFailure(letter.cause))
            left.extendleft(reversed(following))
        return given
