"""Any feed as a Flink source: ticks drive a keyed function that hands on what has arrived."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from forebay.codec import encode
from forebay.connectors.feed import Feed, Received
from forebay.connectors.formats import Format
from forebay.connectors.reader import FeedReader
from forebay.connectors.ticks import ticks
from forebay.connectors.types import BYTES, END_OF_INPUT_MS, PICKLED
from forebay.errors import SettingError

LIMIT_REACHED = "limit_reached"


@dataclass(frozen=True, slots=True)
class Polled:
    """How a feed is read: as `format` (None: its records are encoded already); at most `room` records ahead,
    and `most` handed on at each tick.

    `lasts_s` None: the source never ends. Otherwise its ticks end after so long, and then it waits for the
    end of the feed, which must have one.

    `limit`: records after which the feed is left. Its ticks go on: the counter `forebay.limit_reached` is
    then above 0, and whoever runs the job drains it (`RunningJob.drain`), as `forebay run` does. A job that
    is drained before reads on until the limit.
    """

    feed: Feed
    format: Format | None = field(default_factory=Format)
    ticks_per_s: float = 200.0
    room: int = 1000
    most: int = 200
    lasts_s: float | None = None
    limit: int | None = None


def polled_source(env: StreamExecutionEnvironment, config: Polled) -> DataStream:
    """Each record of the feed as the bytes of an `Event` or `DeadLetter`, in the feed's order.

    The cursor of the last record handed on is state and changes with it: restored from a checkpoint, the
    source goes on right after it.
    """
    if config.ticks_per_s <= 0 or config.room < 1 or config.most < 1:
        raise SettingError("ticks_per_s, room and most of a polled source must be above 0")
    if config.limit is not None and config.limit < 1:
        raise SettingError(f"limit must be at least 1, found {config.limit}")
    count = None if config.lasts_s is None else math.ceil(config.lasts_s * config.ticks_per_s) + 1
    beat = ticks(env, per_s=config.ticks_per_s, count=count)
    return beat.process(Poll(config), BYTES).set_parallelism(1).name(config.feed.name)


class Poll(KeyedProcessFunction):
    """At each tick, what the feed's reader has; never waits, but at the end of input."""

    def __init__(self, config: Polled) -> None:
        self._config = config
        self._reader: FeedReader | None = None
        self._told = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("cursor-and-count", PICKLED))
        self._limit_reached = runtime_context.get_metrics_group().add_group("forebay").counter(LIMIT_REACHED)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if self._reader is None and not self._told:
            ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        yield from self._hand_on()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        if self._config.lasts_s is None and self._config.limit is None:
            return  # The job is drained, and the feed has no end to wait for.
        while not self._told and not (self._reader is not None and self._reader.exhausted):
            if self._reader is not None:
                self._reader.wait(0.01)
            yield from self._hand_on()

    def _hand_on(self) -> Iterator[bytes]:
        cursor, count = self._state.value() or (None, 0)
        most = self._config.most
        if self._config.limit is not None:
            most = min(most, self._config.limit - count)
            if most <= 0:
                self._leave()
                return
        if self._reader is None:
            self._reader = FeedReader(self._config.feed, cursor, room=self._config.room)
        taken = self._reader.take(most)
        for received in taken:
            yield self._encoded(received)
        if taken:
            self._state.update((taken[-1].cursor, count + len(taken)))

    def _leave(self) -> None:
        if not self._told:
            self._told = True
            self._limit_reached.inc()
            self.close()

    def _encoded(self, received: Received) -> bytes:
        form = self._config.format
        return received.raw if form is None else encode(form.read(received.raw, received.position))
