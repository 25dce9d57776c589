"""The continuous inference operator: a keyed Flink function that never waits for a call.

What is accepted rests in keyed state until its answer has left, so a checkpoint is the state as it stands,
and whatever a restore finds there is issued again under the same id. Only the state of the key in hand can be
touched, so answers wait in their shard's mailbox until the next record or timer of that shard; a timer per
shard, armed while the shard has calls, bounds that wait. A restore takes up all shards before the first
record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext, TimeDomain
from pyflink.datastream.state import MapStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import damaged, decode, encode, pack_state, unpack_state
from forebay.errors import ForebayError
from forebay.flink.intervals import PollInterval, RoomWait
from forebay.flink.jvm_task import is_cancelled
from forebay.flink.metrics import NOTHING_READ_MS, FlinkMetrics, InferenceCounters, OperatorLoad
from forebay.flink.ordering import Ordering
from forebay.flink.request_pool import Handler, RequestPool
from forebay.flink.shards import held_keys
from forebay.flink.timers import set_after_round
from forebay.flink.types import BYTES, STATE
from forebay.flink.watermarks import EARLIEST_MS, LowWatermark, MinTracker, clamp_ms
from forebay.records import DeadLetter, KeyedEvent, Result

TIMED = Types.ROW_NAMED(["time_ms", "low_ms", "record"], [Types.LONG(), Types.LONG(), Types.STRING()])
"""A result with its event time and the operator's low watermark; an empty record carries a watermark only."""
DEAD_LETTERS = OutputTag("dead-letters", BYTES)
END_OF_INPUT_MS = 2**63 - 2**40
"""An event-time timer that only the final watermark reaches: processing-time timers no longer fire then.
There is room above it, because each turn at the end of the input is a timer set one later than the last."""
IN_FLIGHT = "in-flight"
HEARTBEAT_MS = 200
WAIT_S = 0.2
"""The longest wait before a look at whether the job is cancelled."""
SET_BACK_MS = 1000
"""By so much a clock that is set back makes shards wait longer than they should; more is noticed."""
ROOM_WAIT_S = 0.04
"""How long an event waits for a slot before it is accepted into the queue of those that wait."""
STATE_VERSION = 1
REQUESTS = "requests"


@dataclass(slots=True)
class Shard:
    """What this subtask knows of one shard: the ids that rest in its state with the times of their events and
    the wall-clock times at which those were read, whether something else waits for a slot, and when the next
    of the processing-time timers is due that were set for it in this run."""

    live: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    next_seq: int = 0
    waits: bool = False
    timer_ms: int | None = None


class InferenceFunction(KeyedProcessFunction):
    """Takes `(Flink key of the shard, record bytes)`; gives `Result` bytes, with `event_time` `TIMED` rows.

    Records are `KeyedEvent`s, and `DeadLetter`s, which pass to `DEAD_LETTERS` as they are; no bytes at all
    only wake a shard. Bound: at most `capacity` calls in flight in this subtask; past it `process_element`
    blocks, which is Flink's backpressure. At the end of input every call is completed before the operator
    ends.

    While it blocks, neither a checkpoint's barrier nor a timer gets through, so it does not block for long:
    an event waits `ROOM_WAIT_S` for a slot, then joins a queue. Once `capacity` are queued, it waits until
    the queue gets shorter, at most one and a half times what an answer takes on average (`RoomWait`). An
    outage of an hour holds a checkpoint up for 21 s, and what is queued grows with the logarithm of the
    outage.
    """

    def __init__(
        self,
        open_answerer: Callable[[InferenceCounters], Awaitable[Handler]],
        *,
        capacity: int,
        ordering: Ordering = "unordered",
        pace: PollInterval | None = None,
        event_time: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._open_answerer = open_answerer
        self._capacity = capacity
        self._ordering: Ordering = ordering
        self._pace = pace or PollInterval()
        self._event_time = event_time
        self._clock = clock or SystemClock()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._open_state(runtime_context)
        self._shards: dict[int, Shard] = {}
        self._low = LowWatermark()
        self._read = MinTracker()
        self._beaten_ms = EARLIEST_MS
        self._counts = InferenceCounters()
        self._room_wait = RoomWait(self._capacity)
        self._ended = False
        self._early = False
        self._context = runtime_context
        self._metrics = FlinkMetrics(runtime_context.get_metrics_group(), self._counts, self._load)
        self._calls = RequestPool(
            partial(self._open_answerer, self._counts), capacity=self._capacity, ordering=self._ordering
        )
        self._calls.start()
        # Before the first event, whenever the timers that came back are due: what is held bounds event time.
        self._keys = partial(held_keys, runtime_context, IN_FLIGHT)
        self._seen_ms = EARLIEST_MS
        for key, ctx in self._keys():
            self._recover(key, ctx)
        self._metrics.tell_oldest()

    def _open_state(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_map_state(MapStateDescriptor(IN_FLIGHT, Types.STRING(), STATE))

    def close(self) -> None:
        # Flink closes a function whose opening failed, too.
        if hasattr(self, "_calls"):
            self._calls.close()

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
                if self._calls.has_room():
                    self._room_wait.over()
                else:
                    yield from self._wait_for_room(key, shard, ctx)
                self._accept(key, shard, record, data)
        self._arm(shard, ctx)
        yield from self._emit(key, shard, ctx)
        if self._ended:
            # The final watermark came before this record, as when one source ends and another is idle.
            yield from self._complete(key, shard, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        key = ctx.get_current_key()
        self._early = self._is_early(timestamp, ctx)
        shard = self._shards.get(key) or self._recover(key, ctx)
        if timestamp >= END_OF_INPUT_MS:
            yield from self._finish(timestamp, key, shard, ctx)
            return
        if timestamp == shard.timer_ms:
            shard.timer_ms = None
        yield from self._emit(key, shard, ctx)
        if self._event_time:
            yield from self._beat(ctx)
        self._arm(shard, ctx)

    def _finish(
        self, timestamp: int, key: int, shard: Shard, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[Any]:
        """Complete a shard at the end of the input. The shards take turns: a timer that is set here fires in
        the same round of timers."""
        self._ended = True
        yield from self._emit(key, shard, ctx)
        if shard.live:
            self._refuse_if_cancelled()
            self._calls.wait_any_ready(WAIT_S)
            yield from self._emit(key, shard, ctx)
            ctx.timer_service().register_event_time_timer(timestamp + 1)
        self._metrics.flush(self._clock.monotonic_s())

    def _complete(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while shard.live:
            self._refuse_if_cancelled()
            self._calls.wait_ready(key, WAIT_S)
            yield from self._emit(key, shard, ctx)

    def _recover(self, key: int, ctx: KeyedProcessFunction.Context) -> Shard:
        """Take up a shard in this run: issue again what a checkpoint left in its state."""
        shard = self._shards[key] = Shard()
        for seq, id, data in sorted(_unpack(entry) for _, entry in self._state.items()):
            item: KeyedEvent = decode(data)
            shard.next_seq = seq + 1
            self._hold(shard, id, item.event.time_ms, item.read_ms)
            self._counts.restored += 1
            self._counts.reissued += 1
            self._calls.submit(key, replace(item, id=id), reissued=True)
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        self._arm(shard, ctx, always=True)
        return shard

    def _accept(self, key: int, shard: Shard, item: KeyedEvent, data: bytes) -> None:
        id = item.id
        if id in shard.live:
            id = _free_id(id, shard.live)
            item = replace(item, id=id)
        self._state.put(id, pack_state(STATE_VERSION, shard.next_seq, id, data))
        shard.next_seq += 1
        self._hold(shard, id, item.event.time_ms, item.read_ms)
        self._counts.accepted += 1
        self._calls.submit(key, item)

    def _hold(self, shard: Shard, id: str, time_ms: int | None, read_ms: int) -> None:
        shard.live[id] = (time_ms, read_ms)
        self._low.hold(time_ms)
        first = self._read.lowest is None
        self._read.add(read_ms)
        if first:
            # Flink must not believe for longer than this event takes that nothing is awaited.
            self._metrics.tell_oldest()

    def _let_go(self, shard: Shard, id: str) -> None:
        time_ms, read_ms = shard.live.pop(id)
        self._low.let_go(time_ms)
        self._read.remove(read_ms)

    def _wait_for_room(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        blocked_s = seen_s = self._clock.monotonic_s()
        while not (self._calls.wait_for_room(ROOM_WAIT_S) or self._calls.may_queue()):
            seen_s = self._note_wait(seen_s)
            self._refuse_if_cancelled()
            yield from self._emit(key, shard, ctx)
            if seen_s - blocked_s >= self._room_wait.most_s(seen_s, self._calls.finished):
                return
        self._note_wait(seen_s)
        if self._calls.load.pending < self._capacity:
            self._room_wait.over()

    def _note_wait(self, since_s: float) -> float:
        now_s = self._clock.monotonic_s()
        self._counts.waited_ms += round((now_s - since_s) * 1000)
        if self._metrics.due(now_s):
            self._metrics.flush(now_s)
        return now_s

    def _refuse_if_cancelled(self) -> None:
        # The thread must end by itself, or Flink ends the JVM after three minutes.
        if is_cancelled():
            raise ForebayError("the job was cancelled while calls were awaited")

    def _arm(self, shard: Shard, ctx: KeyedProcessFunction.Context, *, always: bool = False) -> None:
        now_s = self._clock.monotonic_s()
        if self._metrics.due(now_s):
            self._metrics.flush(now_s)
        now_ms = self._clock.wall_ms()
        set_back = now_ms < self._seen_ms - SET_BACK_MS
        self._seen_ms = now_ms
        if set_back:
            # All timers are as far off as the clock went back. (Flink fires the next of them in time.)
            for key, of_key in self._keys():
                if key in self._shards:
                    self._arm(self._shards[key], of_key, always=True)
        if shard.live or shard.waits or always:
            wake_ms = self._pace.next_ms(now_ms, self._calls.call_s)
        elif self._metrics.stale():
            wake_ms = now_ms + self._pace.idle_ms
        else:
            return
        # A timer that is far off, set while the shard was idle, must not stand in for one needed soon.
        if shard.timer_ms is None or wake_ms < shard.timer_ms:
            shard.timer_ms = wake_ms
            self._set_wall(wake_ms, ctx)

    def _is_early(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> bool:
        """Whether Flink fires a timer before its time, as it does where the clock was set back."""
        return timestamp > self._clock.wall_ms() and ctx.time_domain() == TimeDomain.PROCESSING_TIME

    def _set_wall(self, time_ms: int, ctx: KeyedProcessFunction.Context) -> None:
        """Set a processing-time timer of the key in hand."""
        if self._early:
            # Set now, it would fire at once, in a round that goes on for as long as something is awaited.
            set_after_round(self._context, ctx, time_ms)
        else:
            ctx.timer_service().register_processing_time_timer(time_ms)

    def _emit(self, key: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        for id, answer in self._calls.take(key):
            self._state.remove(id)
            self._let_go(shard, id)
            if isinstance(answer, DeadLetter):
                self._counts.dead_letters += 1
                yield DEAD_LETTERS, encode(answer)
                continue
            self._counts.results += 1
            if not answer.journaled:
                self._counts.engine_s.add(answer.called_s)
            self._counts.event_s.add((self._clock.wall_ms() - answer.read_ms) / 1000)
            yield self._output(answer, encode(answer), ctx)

    def _output(self, answer: Result, data: bytes, ctx: KeyedProcessFunction.Context) -> object:
        if not self._event_time:
            return data
        low_ms = clamp_ms(self._low.now_ms(ctx.timer_service().current_watermark()))
        self._beaten_ms = max(self._beaten_ms, low_ms)
        time_ms = low_ms if answer.time_ms is None else clamp_ms(answer.time_ms)
        return Row(time_ms, low_ms, data.decode("latin-1"))

    def _beat(self, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Tell downstream how far event time is though no result says so; ask to be woken for the next."""
        watermark_ms = ctx.timer_service().current_watermark()
        low_ms = clamp_ms(self._low.now_ms(watermark_ms))
        if low_ms > self._beaten_ms:
            self._beaten_ms = low_ms
            yield Row(low_ms, low_ms, "")
        if watermark_ms < END_OF_INPUT_MS - HEARTBEAT_MS:
            ctx.timer_service().register_event_time_timer(max(watermark_ms, 0) + HEARTBEAT_MS)

    def _load(self) -> OperatorLoad:
        load = self._calls.load
        lowest = self._read.lowest
        return OperatorLoad(load.in_flight, load.pending, NOTHING_READ_MS if lowest is None else lowest)


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
