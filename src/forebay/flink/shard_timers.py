"""An operator's shards and their Flink timers: for event times, wall times and polls."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyflink.datastream import KeyedProcessFunction, RuntimeContext, TimeDomain

from forebay.clock import Clock
from forebay.flink.event_time import EARLIEST_MS
from forebay.flink.jvm_task import set_after_round
from forebay.flink.types import END_OF_INPUT_MS, SET_BACK_MS
from forebay.stateful.machine import HoldWatermark, ShardMachine, WakeAt

END_ROUNDS = 8


@dataclass(slots=True)
class Shard:
    """`held`: watermark holds by name. `overdue`: timers for event times that had passed.

    `full_since`: by key; None for the shard. `rounds`: of timers, at the end of the input.
    """

    key: int
    machine: ShardMachine
    held: dict[str, HoldWatermark] = field(default_factory=dict)
    timer_ms: int | None = None
    overdue: list[int] = field(default_factory=list)
    full_since: dict[str | None, float] = field(default_factory=dict)
    rounds: int = 0

    @property
    def may_fire(self) -> bool:
        return self.machine.due or (self.machine.timers and self.rounds < END_ROUNDS)

    def begin_round(self) -> None:
        machine = self.machine
        if machine.timers and not (machine.awaiting or machine.due) and self.rounds < END_ROUNDS:
            self.rounds += 1
            machine.mark_all_due()


class ShardTimers:
    def __init__(self, context: RuntimeContext, clock: Clock) -> None:
        self.early = False
        self._context = context
        self._clock = clock
        self._seen_ms = EARLIEST_MS

    def begin(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        wall = ctx.time_domain() == TimeDomain.PROCESSING_TIME
        self.early = wall and timestamp > self._clock.wall_ms()

    def clock_set_back(self, now_ms: int) -> bool:
        set_back = now_ms < self._seen_ms - SET_BACK_MS
        self._seen_ms = now_ms
        return set_back

    def poll_at(self, time_ms: int, shard: Shard, ctx: KeyedProcessFunction.Context) -> None:
        # A distant timer, set while the shard was idle, must not replace one needed soon.
        if shard.timer_ms is None or time_ms < shard.timer_ms:
            shard.timer_ms = time_ms
            self._set_wall(time_ms, ctx)

    def wake(self, wanted: WakeAt, shard: Shard, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        if wanted.clock == "wall":
            self._set_wall(wanted.time_ms, ctx)
        elif (watermark_ms := timers.current_watermark()) < END_OF_INPUT_MS:
            # After the final watermark it would fire at once; a program that sets it each time would not end.
            timers.register_event_time_timer(wanted.time_ms)
            if wanted.time_ms <= watermark_ms:
                # Flink fires it when the watermark next moves, which is never if the stream has stopped.
                shard.overdue.append(wanted.time_ms)
                self._set_wall(self._clock.wall_ms(), ctx)

    def mark_due(self, timestamp: int, shard: Shard, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        shard.machine.mark_due("event" if ctx.time_domain() == TimeDomain.EVENT_TIME else "wall", timestamp)
        for time_ms in sorted(shard.overdue):
            shard.machine.mark_due("event", time_ms)
        shard.overdue.clear()

    def _set_wall(self, time_ms: int, ctx: KeyedProcessFunction.Context) -> None:
        if self.early:
            # Set now, it would fire at once, in a round that lasts while something is awaited.
            set_after_round(self._context, ctx, time_ms)
        else:
            ctx.timer_service().register_processing_time_timer(time_ms)
