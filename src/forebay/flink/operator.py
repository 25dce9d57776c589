"""The continuous inference operator: a keyed Flink function that never waits for a call.

A machine per shard decides and keeps the state; the operator makes its calls, emits results, sets timers and
holds event time. Accepted events stay in keyed state until their result is emitted. So a restore repeats
their calls, under the same ids. Only the state of Flink's current key is accessible, so an answer fires a
timer at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, encode
from forebay.engine.answer import CUT
from forebay.errors import SettingError
from forebay.flink.backpressure import Backpressure, refuse_if_cancelled
from forebay.flink.commit_times import open_commit_times
from forebay.flink.event_time import UNKNOWN_MS, WatermarkHolds, is_suspect
from forebay.flink.event_traces import open_event_traces
from forebay.flink.job_marks import ActivityMarks, mark_end
from forebay.flink.jvm_task import barrier_look, collect_less, held_keys
from forebay.flink.learned import LEARNED, LearnedState
from forebay.flink.mailbox import WOKEN_MS, Mailbox, OperatorWaker
from forebay.flink.metrics import NOTHING_READ_MS, FlinkMetrics, InferenceCounters, OperatorLoad
from forebay.flink.one_core import SHARED
from forebay.flink.request_pool import MOST_TAKEN, Handler, Ordering, PollInterval, RequestPool
from forebay.flink.shard_timers import Shard, ShardTimers
from forebay.flink.task_end import close_with_task
from forebay.flink.types import BYTES, END_OF_INPUT_MS, STATE
from forebay.records import DeadLetter, Result
from forebay.stateful.machine import (
    IN_FLIGHT,
    CountFailure,
    Effect,
    HoldWatermark,
    OpenMachines,
    ReleaseWatermark,
    StartCall,
    Store,
    Times,
    WakeAt,
    emits_letter,
)

DEAD_LETTERS = OutputTag("dead-letters", BYTES)
WAIT_S = 0.2
FIRE_S = 0.1


class InferenceOperator(KeyedProcessFunction):
    """Takes `(Flink key of the shard, record bytes)`; emits `Result` bytes or, with event time, `TIMED` rows.

    Empty bytes only wake a shard. Beyond `capacity`, or if a queue is full, `process_element` blocks, which
    is Flink's backpressure. It does not block for long, because no barrier passes meanwhile: an outage of an
    hour delays a checkpoint by 21 s. At the end of input, every call completes before the operator ends.
    """

    def __init__(
        self,
        open_answerer: Callable[[InferenceCounters], Awaitable[Handler]],
        open_machines: OpenMachines,
        *,
        capacity: int,
        ordering: Ordering = "unordered",
        pace: PollInterval | None = None,
        event_time: bool = False,
        clock: Clock | None = None,
        finding: Callable[[Any], str] | None = None,
        opentelemetry: str | None = None,
        one_core: bool = False,
    ) -> None:
        if capacity < 1:
            raise SettingError(f"capacity must be at least 1, found {capacity}")
        self._open_answerer = open_answerer
        self._open_machines = open_machines
        self._capacity = capacity
        self._ordering: Ordering = ordering
        self._pace = pace or PollInterval()
        self.event_time = event_time
        self._clock = clock or SystemClock()
        self._finding = finding
        self._service = opentelemetry
        self._one_core = one_core

    # -- called by Flink

    def open(self, runtime_context: RuntimeContext) -> None:
        def open_store(name: str) -> Store:
            store: Store = runtime_context.get_map_state(MapStateDescriptor(name, Types.STRING(), STATE))
            return store

        collect_less()
        if self._one_core:
            SHARED.join()
        close_with_task(runtime_context, self.close)
        self._new_machine = self._open_machines(open_store)
        self._shards: dict[int, Shard] = {}
        self._holds = WatermarkHolds()
        self._counts = InferenceCounters()
        self._ended = False
        self._timers = ShardTimers(runtime_context, self._clock)
        self._context = runtime_context
        self._commits = open_commit_times(runtime_context, self._clock)
        if self._commits is not None:
            self._counts.commit_s = self._commits.latency
        self._metrics = FlinkMetrics(runtime_context.get_metrics_group(), self._counts, self._load)
        self._waker = OperatorWaker(runtime_context)
        self._mailbox = Mailbox(runtime_context)
        mark_end(runtime_context)
        self._marks = ActivityMarks(runtime_context)
        self._traces = open_event_traces(self._service, self._counts, self._clock)
        self._calls = RequestPool(
            self._open_handler,
            capacity=self._capacity,
            ordering=self._ordering,
            on_ready=self._waker.wake,
            core=SHARED if self._one_core else None,
        )
        self._barrier_waits = waits = barrier_look(runtime_context)
        self._backpressure = Backpressure(
            self._calls, self._counts, self._metrics, waits, capacity=self._capacity, clock=self._clock
        )
        self._calls.start()
        self._metrics.report_through(self._waker.wake)
        # Before the first event, whenever restored timers are due: holds bound event time.
        self._keys = partial(held_keys, runtime_context, IN_FLIGHT)
        for key, ctx in self._keys():
            self._recover(key, ctx)
        self._learned: LearnedState | None = None
        if self._counts.scaling is not None:
            self._learned = LearnedState(open_store(LEARNED), self._counts.scaling.learned)
            self._learned.restore(self._with_learned)
        self._metrics.report_oldest()

    def close(self) -> None:
        # `open` may have failed, and this may be the second call.
        if hasattr(self, "_calls"):
            self._waker.close()
            self._calls.close()
            if self._traces is not None:
                self._traces.close()
                self._traces = None

    async def _open_handler(self) -> Handler:
        handler = await self._open_answerer(self._counts)
        return handler if self._traces is None else self._traces.traced(handler)

    def process_element(self, value: tuple[int, bytes], ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        key, data = value
        self._timers.early = False
        shard = self._shards.get(key) or self._recover(key, ctx)
        if data:
            self._marks.read()
            record = decode(data)
            if isinstance(record, DeadLetter):
                self._counts.accepted += 1
                self._counts.dead_letters += 1
                self._counts.fail(record.cause)
                self._marks.answered()
                if self._traces is not None:
                    self._traces.refused(record)
                yield DEAD_LETTERS, data
            else:
                take = partial(self._take_answers, shard, ctx)
                yield from self._backpressure.make_room(shard, record.key, take)
                self._counts.accepted += 1
                time_ms = record.event.time_ms
                self._counts.suspect_times += time_ms is not None and is_suspect(time_ms)
                if record.timeline is not None:
                    record = replace(
                        record, timeline=replace(record.timeline, accepted_us=self._clock.wall_us())
                    )
                    data = encode(record)
                effects = shard.machine.event(record, data, partial(self._times, ctx))
                yield from self._apply(shard, effects, ctx)
        yield from self._take_answers(shard, ctx)
        self._schedule_poll(shard, ctx)
        if self._ended:
            # The final watermark precedes this record if one source has ended and another was idle.
            yield from self._complete(shard, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        if timestamp == WOKEN_MS:
            self._timers.early = False
            ready = self._calls.ready()
            for key in self._waker.each(ready):
                yield from self._look_after(self._shards[key], ctx)
                if key != ready[-1] and self._makes_way():
                    break
            if self._learned is not None:
                for _ in self._waker.each(self._learned.place(self._shards)):
                    self._learned.write()
            self._report()
            return
        key = ctx.get_current_key()
        self._timers.begin(timestamp, ctx)
        shard = self._shards.get(key) or self._recover(key, ctx)
        if timestamp >= END_OF_INPUT_MS:
            yield from self._finish(timestamp, shard, ctx)
            return
        if timestamp == shard.timer_ms:
            shard.timer_ms = None
        if shard.machine.timers:
            self._timers.mark_due(timestamp, shard, ctx)
        yield from self._look_after(shard, ctx)

    def _look_after(self, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if shard.machine.timers:
            yield from self._fire(shard, ctx)
        yield from self._take_answers(shard, ctx)
        if self.event_time:
            yield from self._holds.advance(ctx)
        self._schedule_poll(shard, ctx)

    def _with_learned(self) -> Iterator[int]:
        for key, ctx in held_keys(self._context, LEARNED):
            if key not in self._shards:
                self._recover(key, ctx)
            yield key

    def _recover(self, key: int, ctx: KeyedProcessFunction.Context) -> Shard:
        shard = self._shards[key] = Shard(key, self._new_machine())
        self._waker.add(key, ctx)
        for _ in self._apply(shard, shard.machine.restore(), ctx):
            raise AssertionError("a restore gives nothing")
        self._counts.restored += sum(held.read_ms is not None for held in shard.held.values())
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        self._schedule_poll(shard, ctx, always=True)
        return shard

    # -- effects of a machine

    def _take_answers(self, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        while answers := self._calls.take(shard.key):
            for id, answer in answers:
                if not isinstance(answer, DeadLetter) and not answer.journaled:
                    self._counts.engine_s.add(answer.called_s)
                effects = shard.machine.answered(id, answer, partial(self._times, ctx))
                if isinstance(answer, DeadLetter) and not emits_letter(effects, answer.cause):
                    # A dead letter is counted when it is emitted.
                    self._counts.fail(answer.cause)
                yield from self._apply(shard, effects, ctx)
            if len(answers) < MOST_TAKEN or self._makes_way():
                break

    def _makes_way(self) -> bool:
        """Whether a checkpoint's barrier waits; if so, `on_timer` is called after it."""
        if waits := self._barrier_waits():
            self._waker.wake()
        return waits

    def _apply(
        self, shard: Shard, effects: Sequence[Effect], ctx: KeyedProcessFunction.Context
    ) -> Iterator[Any]:
        if self._traces is not None:
            self._traces.take(shard.key, effects)
        # Not `match`: it takes longer than the rest of this loop.
        for effect in effects:
            if isinstance(effect, StartCall):
                self._counts.restored_calls += effect.restored
                self._calls.submit(shard.key, effect.item, restored=effect.restored)
            elif isinstance(effect, HoldWatermark):
                self._hold(shard, effect)
            elif isinstance(effect, ReleaseWatermark):
                self._holds.release(shard.held.pop(effect.name))
            elif isinstance(effect, WakeAt):
                self._timers.wake(effect, shard, ctx)
            elif isinstance(effect, CountFailure):
                self._counts.fail(effect.cause)
            elif isinstance(effect.record, DeadLetter):
                self._counts.dead_letters += 1
                self._counts.fail(effect.record.cause)
                self._marks.answered()
                yield DEAD_LETTERS, effect.data
            else:
                self._counts.results += 1
                self._marks.answered()
                if self._commits is not None:
                    self._commits.answered()
                self._counts.cut_answers += effect.record.finish_reason == CUT
                if self._finding is not None:
                    self._counts.find(self._finding(effect.record.answer))
                self._counts.event_s.add((self._clock.wall_ms() - effect.record.read_ms) / 1000)
                yield self._output(effect.record, effect.data, ctx)

    def _hold(self, shard: Shard, held: HoldWatermark) -> None:
        shard.held[held.name] = held
        first = self._holds.oldest_read_ms is None
        self._holds.hold(held)
        if first and held.read_ms is not None:
            # Report at once that something is awaited.
            self._metrics.report_oldest()

    def _output(self, answer: Result, data: bytes, ctx: KeyedProcessFunction.Context) -> object:
        if answer.timeline is not None:
            data = encode(replace(answer, timeline=replace(answer.timeline, left_us=self._clock.wall_us())))
        if not self.event_time:
            return data
        return self._holds.timed(answer, data, ctx.timer_service().current_watermark())

    def _times(self, ctx: KeyedProcessFunction.Context) -> Times:
        watermark_ms = ctx.timer_service().current_watermark()
        return Times(self._clock.wall_ms(), watermark_ms if watermark_ms > UNKNOWN_MS else None)

    def _report(self) -> None:
        if self._commits is not None and self._commits.check_commits(self._waker.wake_after):
            # Nothing may call this operator until the next event.
            self._metrics.flush(self._clock.monotonic_s())
        self._metrics.flush_if_due(self._clock.monotonic_s())

    # -- timers: of shards, and of their machines

    def _schedule_poll(
        self, shard: Shard, ctx: KeyedProcessFunction.Context, *, always: bool = False
    ) -> None:
        self._report()
        now_ms = self._clock.wall_ms()
        if self._timers.clock_set_back(now_ms):
            # Flink fires only the next timer in time.
            for key, of_key in self._keys():
                if key in self._shards:
                    self._schedule_poll(self._shards[key], of_key, always=True)
        if always or shard.machine.due or (shard.machine.awaiting and not self._waker.works):
            wake_ms = self._pace.next_ms(now_ms, self._calls.call_s)
        elif shard.machine.awaiting:
            wake_ms = now_ms + self._pace.rescue_ms
        elif self._metrics.stale():
            wake_ms = now_ms + self._pace.idle_ms
        else:
            return
        self._timers.poll_at(wake_ms, shard, ctx)

    def _fire(self, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        until_s = self._clock.monotonic_s() + FIRE_S
        while shard.machine.due and self._calls.has_room():
            yield from self._apply(shard, shard.machine.fire(partial(self._times, ctx)), ctx)
            if self._clock.monotonic_s() >= until_s or self._barrier_waits():
                break

    # -- the end of the input

    def _finish(
        self, timestamp: int, shard: Shard, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterator[Any]:
        self._ended = True
        yield from self._take_answers(shard, ctx)
        yield from self._fire_at_end(shard, ctx)
        if shard.machine.awaiting or shard.machine.due:
            refuse_if_cancelled()
            if not (shard.machine.due and self._calls.has_room()):
                self._calls.wait_any_ready(WAIT_S)
            yield from self._take_answers(shard, ctx)
        if shard.machine.awaiting or shard.may_fire:
            ctx.timer_service().register_event_time_timer(timestamp + 1)
            # After the timer is set: Flink has removed the fired one, and a checkpoint must hold the next.
            self._run_mails()
        self._metrics.flush(self._clock.monotonic_s())

    def _complete(self, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        # An input that was idle when all others ended continues: each of its events has its own rounds.
        shard.rounds = 0
        while shard.machine.awaiting or shard.may_fire:
            refuse_if_cancelled()
            if shard.machine.awaiting:
                self._calls.wait_ready(shard.key, WAIT_S)
                yield from self._take_answers(shard, ctx)
            else:
                self._calls.wait_for_room(WAIT_S)
                yield from self._fire_at_end(shard, ctx)
            self._run_mails()

    def _run_mails(self) -> None:
        """Let checkpoints and commits pass while answers are pending at the end of the input."""
        early = self._timers.early
        # What has left is in the snapshots of these mails.
        self._report()
        self._mailbox.run_mails()
        self._timers.early = early
        self._report()

    def _fire_at_end(self, shard: Shard, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        shard.begin_round()
        yield from self._fire(shard, ctx)

    def _load(self) -> OperatorLoad:
        load, lowest = self._calls.load, self._holds.oldest_read_ms
        return OperatorLoad(load.in_flight, load.pending, NOTHING_READ_MS if lowest is None else lowest)
