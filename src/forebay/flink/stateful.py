"""The stateful inference operator: a program sees its key's state before each call and the answer after it.

It is the continuous inference operator with another idea of what rests in a shard's state: the machine of
`forebay.stateful.shard_executor` decides, this function does. Flink's key is the shard; the program's keys
lie in the shard's map states, so that one timer wakes all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from pyflink.common import Types
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, TimeDomain
from pyflink.datastream.state import MapStateDescriptor

from forebay.clock import Clock
from forebay.codec import decode
from forebay.errors import SettingError
from forebay.flink.infer import DEFAULT_SHARDS, InferenceStreams, attach
from forebay.flink.inference import (
    DEAD_LETTERS,
    END_OF_INPUT_MS,
    ROOM_WAIT_S,
    WAIT_S,
    InferenceFunction,
    Shard,
)
from forebay.flink.intervals import PollInterval
from forebay.flink.keying import EventText, ToEvent
from forebay.flink.metrics import InferenceCounters
from forebay.flink.request_handler import InferenceSpec, OpenProgramRequestHandler, ProgramRequest
from forebay.flink.request_pool import Handler
from forebay.flink.types import STATE
from forebay.flink.watermarks import UNKNOWN_MS
from forebay.records import DeadLetter
from forebay.stateful.effects import Effect, Emit, HoldWatermark, ReleaseWatermark, WakeAt
from forebay.stateful.effects import StartCall as ProgramCall
from forebay.stateful.key_states import Limits
from forebay.stateful.program import Program
from forebay.stateful.shard_executor import ShardExecutor, Times
from forebay.stateful.stores import Stores

END_ROUNDS = 8
"""At the end of the input, timers fire that firings set, and so on: so many times over."""
FIRE_S = 0.1
"""For so long, and a few keys more, a shard fires timers before all else gets its turn."""
SLOTS = (-1, "")
"""The place that all events share; the others are a key's queue and a shard's queues."""
QUEUES = 16
"""A shard's events that wait for calls of their keys: at most so many times the capacity."""
LEAST_SHARE = 64
"""Where such a queue is full, an event waits at most for this part of the time for which it has been, or for
1/capacity of it where that is less."""


class StatefulFunction(InferenceFunction):
    """Takes what `InferenceFunction` takes and gives the results and dead letters of `program`.

    Of one key, one call at a time is in flight; at most `queue` of its events wait meanwhile, in state. Past
    that, or where `capacity` calls are in flight in this subtask, `process_element` blocks, as
    `InferenceFunction` does: at most one and a half times what an answer takes on average, or a 64th of the
    time for which a key's queue has been full. What waits grows with the logarithm of that time.
    """

    def __init__(
        self,
        open_answerer: Callable[[InferenceCounters], Awaitable[Handler]],
        program: Program[Any],
        *,
        limits: Limits | None = None,
        capacity: int,
        queue: int = 64,
        pace: PollInterval | None = None,
        event_time: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(open_answerer, capacity=capacity, pace=pace, event_time=event_time, clock=clock)
        self._program = program
        self._limits = limits or Limits()
        self._queue = queue

    def open(self, runtime_context: RuntimeContext) -> None:
        self._turns: dict[int, ShardExecutor[Any]] = {}
        self._heads: dict[tuple[int, str], int | None] = {}
        self._full_places: dict[tuple[int, str], float] = {}
        self._rounds: dict[int, int] = {}
        self._overdue: dict[int, list[int]] = {}
        super().open(runtime_context)

    def _open_state(self, runtime_context: RuntimeContext) -> None:
        def store(name: str) -> Any:
            return runtime_context.get_map_state(MapStateDescriptor(name, Types.STRING(), STATE))

        super()._open_state(runtime_context)
        self._stores = Stores(keys=store("keys"), work=self._state, due=store("due"))

    def process_element(self, value: tuple[int, bytes], ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        key, data = value
        self._early = False
        shard = self._shards.get(key) or self._recover(key, ctx)
        if data:
            record = decode(data)
            if isinstance(record, DeadLetter):
                self._counts.accepted += 1
                self._counts.dead_letters += 1
                yield DEAD_LETTERS, data
            else:
                yield from self._make_room(key, shard, record.key, ctx)
                self._counts.accepted += 1
                effects = self._turns[key].event(record, data, self._times(ctx))
                yield from self._do(key, shard, effects, ctx)
        self._arm(shard, ctx)
        yield from self._emit(key, shard, ctx)
        if self._ended:
            # An input that was idle when all others ended goes on: each of its events has its own rounds.
            self._rounds.pop(key, None)
            yield from self._complete(key, shard, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        if timestamp < END_OF_INPUT_MS:
            key = ctx.get_current_key()
            self._early = self._is_early(timestamp, ctx)
            shard = self._shards.get(key) or self._recover(key, ctx)
            turns = self._turns[key]
            turns.come("event" if ctx.time_domain() == TimeDomain.EVENT_TIME else "wall", timestamp)
            for time_ms in sorted(self._overdue.pop(key, ())):
                turns.come("event", time_ms)
            yield from self._fire(key, shard, ctx)
        yield from super().on_timer(timestamp, ctx)

    def _recover(self, key: int, ctx: KeyedProcessFunction.Context) -> Shard:
        shard = self._shards[key] = Shard()
        turns = self._turns[key] = ShardExecutor(self._program, self._limits, self._stores)
        for _ in self._do(key, shard, turns.restore(), ctx):
            raise AssertionError("a restore gives nothing")
        self._counts.restored += len(shard.live)
        shard.waits = turns.due
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        self._arm(shard, ctx, always=True)
        return shard

    def _emit(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        for _, answer in self._calls.take(key):
            if not isinstance(answer, DeadLetter) and not answer.journaled:
                self._counts.engine_s.add(answer.called_s)
            assert answer.key is not None
            effects = self._turns[key].answered(answer.key, answer, self._times(ctx))
            yield from self._do(key, shard, effects, ctx)

    def _do(
        self, key: int, shard: Shard, effects: Iterable[Effect], ctx: KeyedProcessFunction.Context
    ) -> Iterator[Any]:
        for effect in effects:
            match effect:
                case ProgramCall(item, ask, again):
                    self._counts.reissued += again
                    asked = ProgramRequest(item.id, item.key, item.event, item.read_ms, ask)
                    self._calls.submit(key, asked, reissued=again)
                case Emit(record, data):
                    if isinstance(record, DeadLetter):
                        self._counts.dead_letters += 1
                        yield DEAD_LETTERS, data
                    else:
                        self._counts.results += 1
                        self._counts.event_s.add((self._clock.wall_ms() - record.read_ms) / 1000)
                        yield self._output(record, data, ctx)
                case WakeAt(clock, time_ms):
                    self._wake(key, clock, time_ms, ctx)
                case HoldWatermark(name, time_ms, read_ms):
                    self._hold_back(key, shard, name, time_ms, read_ms)
                case ReleaseWatermark(name):
                    if name in shard.live:
                        self._let_go(shard, name)
                    else:
                        self._low.let_go(self._heads.pop((key, name)))

    def _hold_back(self, key: int, shard: Shard, name: str, time_ms: int | None, read_ms: int | None) -> None:
        if read_ms is None:
            # A timer that is set: event time waits for it, but nobody waits for an answer.
            self._heads[key, name] = time_ms
            self._low.hold(time_ms)
        else:
            self._hold(shard, name, time_ms, read_ms)

    def _wake(self, key: int, clock: str, time_ms: int, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        if clock == "wall":
            self._set_wall(time_ms, ctx)
        elif (watermark_ms := timers.current_watermark()) < END_OF_INPUT_MS:
            # After the final watermark it would fire at once, and what a program sets each time without end.
            timers.register_event_time_timer(time_ms)
            if time_ms <= watermark_ms:
                # Flink fires it when the watermark next moves, which is never where the stream has stopped.
                self._overdue.setdefault(key, []).append(time_ms)
                self._set_wall(self._clock.wall_ms(), ctx)

    def _make_room(self, key: int, shard: Shard, of: str, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Block while there is no room for an event of the program's key `of`."""
        turns = self._turns[key]
        blocked_s = seen_s = self._clock.monotonic_s()
        while (full := self._full_one(key, turns, of)) is not None:
            if full != SLOTS:
                self._calls.wait_ready(key, ROOM_WAIT_S)
            elif self._calls.wait_for_room(ROOM_WAIT_S) or self._calls.may_queue():
                break
            seen_s = self._note_wait(seen_s)
            self._refuse_if_cancelled()
            yield from self._emit(key, shard, ctx)
            if full == SLOTS:
                most_s = self._room_wait.most_s(seen_s, self._calls.finished)
            else:
                since_s = self._full_places.setdefault(full, blocked_s)
                most_s = (seen_s - since_s) / max(LEAST_SHARE, self._capacity)
            if seen_s - blocked_s >= most_s:
                return
        if seen_s > blocked_s:
            self._note_wait(seen_s)
        for place in ((key, of), (key, "")) if self._full_places else ():
            self._full_places.pop(place, None)
        if not turns.awaits(of) and self._calls.load.pending < self._capacity:
            self._room_wait.over()

    def _full_one(self, key: int, turns: ShardExecutor[Any], of: str) -> tuple[int, str] | None:
        """Where there is no room for an event of `of`: in its queue, in its shard's, or in the slots."""
        if not turns.awaits(of):
            return None if self._calls.has_room() else SLOTS
        if turns.waits_of(of) >= self._queue:
            return key, of
        return (key, "") if turns.waits >= QUEUES * self._capacity else None

    def _fire(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Fire timers that are due, as long as there is room for their calls, and not for long: those of very
        many keys may be due at once, and neither an event nor a checkpoint's barrier passes meanwhile."""
        turns = self._turns[key]
        until_s = self._clock.monotonic_s() + FIRE_S
        while turns.due and self._calls.has_room():
            yield from self._do(key, shard, turns.fire(self._times(ctx)), ctx)
            if self._clock.monotonic_s() >= until_s:
                break
        shard.waits = turns.due

    def _finish(
        self, timestamp: int, key: int, shard: Shard, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[Any]:
        self._ended = True
        yield from self._emit(key, shard, ctx)
        yield from self._fire_at_end(key, shard, ctx)
        if shard.live or shard.waits:
            self._refuse_if_cancelled()
            if not (shard.waits and self._calls.has_room()):
                self._calls.wait_any_ready(WAIT_S)
            yield from self._emit(key, shard, ctx)
        if shard.live or shard.waits or self._may_fire(key):
            ctx.timer_service().register_event_time_timer(timestamp + 1)
        self._metrics.flush(self._clock.monotonic_s())

    def _complete(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield from super()._complete(key, shard, ctx)
        while shard.waits or self._may_fire(key):
            self._refuse_if_cancelled()
            self._calls.wait_for_room(WAIT_S)
            yield from self._fire_at_end(key, shard, ctx)
            yield from super()._complete(key, shard, ctx)

    def _may_fire(self, key: int) -> bool:
        return self._turns[key].timers and self._rounds.get(key, 0) < END_ROUNDS

    def _fire_at_end(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Go on with the timers that are due; once those and their calls are over, all that are set are."""
        if not (shard.live or shard.waits) and self._may_fire(key):
            self._rounds[key] = self._rounds.get(key, 0) + 1
            self._turns[key].come_all()
        yield from self._fire(key, shard, ctx)

    def _times(self, ctx: KeyedProcessFunction.Context) -> Times:
        watermark_ms = ctx.timer_service().current_watermark()
        return Times(self._clock.wall_ms(), watermark_ms if watermark_ms > UNKNOWN_MS else None)


def infer_stateful(
    stream: DataStream,
    program: Program[Any],
    call: InferenceSpec,
    *,
    key: EventText | None,
    to_event: ToEvent | None = None,
    id: EventText | None = None,
    capacity: int = 64,
    queue: int = 64,
    ttl_s: float | None = None,
    max_state_bytes: int = 262_144,
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    pace: PollInterval | None = None,
    clock: Clock | None = None,
    name: str = "infer",
) -> InferenceStreams:
    """Run `program` over `stream`: it sees its key's state before each call and the answer after it.

    Steps of one `key` are made one after another, in the order of its events; keys go side by side, each
    change of state, its outputs and its next call in one go, exactly once as far as Flink's state goes. A
    call in flight is in state; after a restore it is made again with the same id and the same messages.

    At most `queue` events of a key wait for its call, and `capacity` calls are in flight per subtask; past
    that the input is blocked. A key is forgotten `ttl_s` after its last step (None: never); its saved state
    and its timers may take `max_state_bytes`. `call.prompt` and `call.schema` are not used: a program writes
    its own.

    The rest is as for `infer`; `shards` may not change for the life of the state. Raises `SettingError` where
    the settings contradict each other.
    """
    if key is None:
        raise SettingError("a stateful program needs a key")
    if queue < 1:
        raise SettingError(f"queue must be at least 1, found {queue}")
    if ttl_s is not None and ttl_s <= 0:
        raise SettingError(f"ttl_s must be positive, found {ttl_s:g}")
    function = StatefulFunction(
        OpenProgramRequestHandler(call),
        program,
        limits=Limits(ttl_s, max_state_bytes),
        capacity=capacity,
        queue=queue,
        pace=pace,
        event_time=event_time,
        clock=clock,
    )
    return attach(
        stream,
        function,
        to_event=to_event,
        key=key,
        id=id,
        capacity=capacity,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )
