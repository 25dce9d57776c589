"""Runs a program over one shard: turns of a key one after another, keys concurrently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from forebay.codec import encode
from forebay.errors import ProgramFailed, RecordError
from forebay.records import DeadLetter, KeyedEvent, Message, Result, Usage
from forebay.stateful.key_states import Due, KeyStateStore, StateLimits, Stores, head, head_name
from forebay.stateful.machine import (
    IN_FLIGHT,
    Clocks,
    Effect,
    Emit,
    ReleaseWatermark,
    Room,
    ShardMachine,
    Store,
    Times,
    WakeAt,
)
from forebay.stateful.program import Answer, Ask, Failure, Moment, Program, Step, TimeDomain
from forebay.stateful.turns import (
    KeyMemory,
    Turn,
    call_of,
    hold_of,
    leaving,
    letter_of,
    pack_turn,
    unpack_turn,
)

S = TypeVar("S")
CALL, WAITING = "c", "q"
MAX_CALLS = 64


@dataclass(frozen=True)
class ProgramMachines(Generic[S]):
    """The `OpenMachines` of a program. With `timeline`, results of timers have a timeline, too."""

    program: Program[S]
    limits: StateLimits
    timeline: bool = False

    def __call__(self, open_store: Callable[[str], Store]) -> Callable[[], ShardMachine]:
        stores = Stores(keys=open_store("keys"), work=open_store(IN_FLIGHT), due=open_store("due"))
        return partial(ShardExecutor, self.program, self.limits, stores, timeline=self.timeline)


class ShardExecutor(ShardMachine, Generic[S]):
    def __init__(
        self, program: Program[S], limits: StateLimits, stores: Stores, *, timeline: bool = False
    ) -> None:
        self._program = program
        self._timeline = timeline
        self._limits = limits
        self._stores = stores
        self._due = Due(stores.work, stores.due)
        self._memories = KeyStateStore(program, limits, stores, self._due)
        self._awaited: dict[str, Turn] = {}
        self._waiting: dict[str, deque[int]] = {}
        self._waits = 0
        self._next_seq = 0
        self._restored_before = 0

    @property
    def awaiting(self) -> bool:
        # A turn waits only for a call of its key.
        return bool(self._awaited)

    @property
    def timers(self) -> bool:
        return bool(self._due.heads)

    @property
    def due(self) -> bool:
        return self._due.first is not None

    def room(self, key: str) -> Room:
        if key not in self._awaited:
            return "slot"
        if len(self._waiting.get(key, ())) >= self._limits.queue:
            return "full key"
        return "full shard" if self._waits >= self._limits.shard_queue else "queue"

    def restore(self) -> list[Effect]:
        effects: list[Effect] = []
        waiting: list[Turn] = []
        for name, value in self._stores.work.items():
            if self._due.restore(name, value):
                continue
            turn = unpack_turn(value)
            self._next_seq = max(self._next_seq, turn.seq + 1)
            if name.startswith(CALL):
                self._awaited[turn.key] = turn
            else:
                waiting.append(turn)
        self._restored_before = self._next_seq
        self._due.restored()
        for turn in sorted(waiting, key=lambda each: each.seq):
            self._wait(turn)
        awaited = sorted(self._awaited.values(), key=lambda each: each.seq)
        for turn in (*awaited, *waiting):
            effects.append(hold_of(turn))
        for clock, time_ms in self._due.heads:
            effects += head(clock, time_ms)
        for turn in awaited:
            effects.append(call_of(turn, restored=True))
        return effects

    def event(self, item: KeyedEvent, data: bytes, clocks: Clocks) -> list[Effect]:
        now = clocks()
        effects: list[Effect] = []
        if self.due:
            # Timers of other keys may wait for room; those of this key precede the event.
            fired: list[Turn] = []
            for clock, time_ms in self._memories.noted(item.key):
                if self._due.has_reached(clock, time_ms):
                    fired += self._fired(item.key, clock, time_ms, now, effects)
            self._begin(fired, now, effects)
        turn = Turn(self._seq(), item.key, item.read_ms, data, watermark_ms=now.watermark_ms)
        self._begin([turn], now, effects)
        return effects

    def answered(self, id: str, answer: Result | DeadLetter, clocks: Clocks) -> list[Effect]:
        key = answer.key
        assert key is not None
        turn = self._awaited.pop(key)
        self._stores.work.remove(CALL + key)
        assert turn.ask is not None
        tag = turn.ask.tag
        now = clocks()
        effects: list[Effect] = []
        moment = self._moment(turn, now)
        usage = Usage() if isinstance(answer, DeadLetter) else answer.usage
        turn = turn.spend(usage, answer.attempts, answer.cost_pico)
        spoilt: RecordError | None = None
        memory, state = self._memories.recall(key)
        if isinstance(answer, DeadLetter):
            failure = Failure(answer.cause, answer.detail, turn.attempts)
        else:
            given = Answer(answer.answer, answer.usage, answer.finish_reason)
            step = self._guarded(
                lambda: self._program.on_answer(self._or_new(state, key), tag, given, moment)
            )
            spoilt = self._apply(turn, memory, step, now, effects, carrier=answer)
            if spoilt is None:
                self._go_on(key, now, effects)
                return effects
            # Otherwise the program would wait forever for the answer.
            failure = Failure(spoilt.cause, str(spoilt), turn.attempts)
            memory, state = self._memories.recall(key)
        step = self._guarded(lambda: self._program.on_failure(self._or_new(state, key), tag, failure, moment))
        failed = self._apply(turn, memory, step, now, effects)
        if failed is not None:
            self._spoil(turn, memory, spoilt or failed, effects)
        self._go_on(key, now, effects)
        return effects

    def mark_due(self, clock: TimeDomain, time_ms: int) -> None:
        self._due.mark_due(clock, time_ms)

    def mark_all_due(self) -> None:
        self._memories.ending = True
        for clock, time_ms in sorted(self._due.heads, key=lambda head: head[1]):
            self._due.mark_due(clock, time_ms)

    def fire(self, clocks: Clocks) -> list[Effect]:
        """Fire the timers of at most `PER_CHUNK` keys: each may start a call."""
        now = clocks()
        effects: list[Effect] = []
        fired: list[Turn] = []
        if self._due.first is None:
            return effects
        clock, time_ms = self._due.first
        for key in self._due.take():
            fired += self._fired(key, clock, time_ms, now, effects)
        over = (clock, time_ms) not in self._due.heads
        if not over and not self._due.has_reached(clock, time_ms):
            # Keys were noted for it since it became due.
            effects.append(WakeAt(clock, time_ms))
        self._begin(fired, now, effects, over=[head_name(time_ms)] if over and clock == "event" else ())
        return effects

    def _fired(
        self, key: str, clock: TimeDomain, time_ms: int, now: Times, effects: list[Effect]
    ) -> list[Turn]:
        firings = self._memories.look_at(key, clock, time_ms, now.wall_ms, effects, busy=key in self._awaited)
        turns = [Turn(self._seq(), key, now.wall_ms, b"", each, now.watermark_ms) for each in firings]
        return [turn.timed() for turn in turns] if self._timeline else turns

    def _begin(
        self, turns: Sequence[Turn], now: Times, effects: list[Effect], *, over: Sequence[str] = ()
    ) -> None:
        # Hold all before the first emits: event time must not pass the others.
        effects += [hold_of(turn) for turn in turns]
        effects += [ReleaseWatermark(name) for name in over]
        for turn in turns:
            self._offer(turn, now, effects)

    # -- what waits

    def _offer(self, turn: Turn, now: Times, effects: list[Effect]) -> None:
        if turn.key in self._awaited:
            self._stores.work.put(_waiting_name(turn.seq), pack_turn(turn))
            self._wait(turn)
        else:
            self._step(turn, now, effects)
            self._go_on(turn.key, now, effects)

    def _wait(self, turn: Turn) -> None:
        self._waiting.setdefault(turn.key, deque()).append(turn.seq)
        self._waits += 1

    def _go_on(self, key: str, now: Times, effects: list[Effect]) -> None:
        while key not in self._awaited and key in self._waiting:
            seqs = self._waiting[key]
            name = _waiting_name(seqs.popleft())
            self._waits -= 1
            if not seqs:
                del self._waiting[key]
            data = self._stores.work.get(name)
            assert data is not None
            self._stores.work.remove(name)
            self._step(unpack_turn(data), now, effects)

    # -- a turn

    def _step(self, turn: Turn, now: Times, effects: list[Effect]) -> None:
        key = turn.key
        memory, state = self._memories.recall(key)
        moment = self._moment(turn, now)
        firing = turn.firing
        if firing is None:
            event = turn.item.event
            step = self._guarded(lambda: self._program.on_event(self._or_new(state, key), event, moment))
        else:
            timer = None if memory is None else memory.timers.get(firing.name)
            if memory is None or timer is None or not timer.fired or timer.firing(firing.name) != firing:
                # Replaced or removed since it fired.
                effects.append(ReleaseWatermark(turn.hold))
                return
            del memory.timers[firing.name]
            name, at_ms = firing.name, firing.time_ms
            step = self._guarded(
                lambda: self._program.on_timer(self._or_new(state, key), name, at_ms, moment)
            )
        failed = self._apply(turn, memory, step, now, effects)
        if failed is not None:
            self._spoil(turn, memory, failed, effects)

    def _apply(
        self,
        turn: Turn,
        memory: KeyMemory | None,
        step: Step[S] | RecordError,
        now: Times,
        effects: list[Effect],
        *,
        carrier: Result | None = None,
    ) -> RecordError | None:
        """Apply the whole step, or return why it failed. `carrier`: the answer that led to it."""
        key = turn.key
        try:
            if isinstance(step, RecordError):
                raise step
            kept = self._memories.changed(memory, step, turn.item.id, now.wall_ms)
            restored = turn.seq < self._restored_before
            following, given = leaving(turn, step, carrier, restored=restored)
            if step.ask is not None:
                following = replace(following, ask=_checked(step.ask), calls=following.calls + 1)
                if following.calls > MAX_CALLS:
                    raise ProgramFailed(f"the program asked more than {MAX_CALLS} times in one turn")
                self._stores.work.put(CALL + key, pack_turn(following))
        except Exception as error:
            return error if isinstance(error, RecordError) else ProgramFailed(_text_of(error))
        self._memories.remember(key, kept, effects, before=memory)
        effects += given
        if step.ask is None:
            effects.append(ReleaseWatermark(turn.hold))
            return None
        self._awaited[key] = following
        effects.append(call_of(following))
        return None

    def _spoil(
        self, turn: Turn, memory: KeyMemory | None, failed: RecordError, effects: list[Effect]
    ) -> None:
        letter = letter_of(turn, Failure(failed.cause, str(failed), turn.attempts))
        effects += [Emit(letter, encode(letter), turn=turn.hold), ReleaseWatermark(turn.hold)]
        if turn.firing is not None and memory is not None:
            # The timer has fired, even if its step failed.
            self._memories.remember(turn.key, memory, effects, before=memory)

    def _or_new(self, state: Any, key: str) -> S:
        return self._program.initial(key) if state is None else state

    def _seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _moment(self, turn: Turn, now: Times) -> Moment:
        return Moment(turn.key, turn.item.id, now.wall_ms, turn.watermark_ms)

    @staticmethod
    def _guarded(make: Any) -> Step[S] | RecordError:
        try:
            step: Any = make()
        except RecordError as refusal:
            return refusal
        except Exception as error:
            return ProgramFailed(_text_of(error))
        return (
            step if isinstance(step, Step) else ProgramFailed(f"expected a Step, found {type(step).__name__}")
        )


def _checked(ask: Ask) -> Ask:
    if not ask.messages or not all(isinstance(message, Message) for message in ask.messages):
        raise ProgramFailed("an Ask needs messages")
    if not all(isinstance(message.content, str) for message in ask.messages):
        raise ProgramFailed("a message's content must be text")
    return ask


def _waiting_name(seq: int) -> str:
    return f"{WAITING}{seq}"


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
