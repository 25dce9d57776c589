"""Any feed as a Flink source: a keyed function hands on what its reader has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from forebay.clock import Clock
from forebay.codec import encode, pack_state, unpack_state
from forebay.connectors.feeds.feed import Feed, Received
from forebay.connectors.feeds.reader import FeedReader
from forebay.connectors.formats import Format
from forebay.connectors.python_source import MOST_WAIT_S, CallLimit, IdleWait, calls
from forebay.errors import ForebayError, SettingError
from forebay.flink.jvm_task import is_cancelled, output_room
from forebay.flink.types import BYTES, END_OF_TIME_MS, STATE

LIMIT_REACHED = "limit_reached"
STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Polled:
    """How a feed is read: as `format` (None: its records are encoded already), at most `room` records ahead.

    `limit`: records after which the feed is left. The source itself never ends: once the feed is left, or
    has ended, the counter `forebay.limit_reached` is above 0, and whoever runs the job drains it
    (`RunningJob.drain`), as `forebay run` does. A job with a limit that is drained before reads on until it.
    """

    feed: Feed
    format: Format | None = field(default_factory=Format)
    room: int = 1000
    limit: int | None = None


def polled_source(env: StreamExecutionEnvironment, config: Polled) -> DataStream:
    """Each record of the feed as the bytes of an `Event` or `DeadLetter`, in the feed's order.

    The cursor of the last record handed on is state and changes with it: restored from a checkpoint, the
    source goes on right after it. Where what follows takes records slowly, one is handed on at a time, so
    that a checkpoint waits for one record at most. What the feed raises fails the job.
    """
    if config.room < 1:
        raise SettingError(f"room must be at least 1, found {config.room}")
    if config.limit is not None and config.limit < 1:
        raise SettingError(f"limit must be at least 1, found {config.limit}")
    beat = calls(env, name=f"calls of {config.feed.name}")
    return beat.process(Poll(config), BYTES).set_parallelism(1).name(config.feed.name)


class Poll(KeyedProcessFunction):
    """At each call, what the feed's reader has. Waits for a moment where that is nothing; at the end of the
    input, with a limit, until it is reached or the feed has ended."""

    def __init__(
        self, config: Polled, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._reader: FeedReader | None = None
        self._begun = False
        self._left = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("cursor-and-count", STATE))
        self._limit_reached = runtime_context.get_metrics_group().add_group("forebay").counter(LIMIT_REACHED)
        self._call = CallLimit(output_room(runtime_context), clock=self._clock)
        self._idle = IdleWait(self._clock)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
        if self._left:
            self._sleep(MOST_WAIT_S)
        yield from self._hand_on()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        if self._config.limit is None:
            # The job is drained, and the feed has no end to wait for. Whether it has failed is still told.
            yield from self._hand_on()
            return
        while not self._left:
            if is_cancelled():
                raise ForebayError("the job was cancelled before the feed's limit was reached")
            yield from self._hand_on()

    def _hand_on(self) -> Iterator[bytes]:
        if self._left:
            return
        found = self._state.value()
        cursor, count = (None, 0) if found is None else unpack_state(found, STATE_FORMAT, "a feed's cursor")
        limit, taken, wait_s = self._config.limit, None, self._idle.wait_s()
        self._call.begin()
        while limit is None or count < limit:
            if self._reader is None:
                self._reader = FeedReader(self._config.feed, cursor, room=self._config.room)
            received = self._reader.take(wait_s)
            if received is None:
                break
            taken, count, wait_s = received, count + 1, 0.0
            yield self._encoded(received)
            if self._call.reached():
                break
        if taken is not None:
            self._idle.came()
            self._state.update(pack_state(STATE_FORMAT, taken.cursor, count))
        if count == limit or (self._reader is not None and self._reader.exhausted):
            self._leave()

    def _leave(self) -> None:
        self._left = True
        self._limit_reached.inc()
        self.close()

    def _encoded(self, received: Received) -> bytes:
        form = self._config.format
        return received.raw if form is None else encode(form.read(received.raw, received.position))
