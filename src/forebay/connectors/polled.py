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


@dataclass(frozen=True, slots=True)
class Polled:
    """How a feed is read: as `format` (None: its records are encoded already); at most `room` records ahead,
    and `most` handed on at each tick.

    `lasts_s` None: the source never ends. Otherwise its ticks end after so long, and then it waits for the
    end of the feed, which must have one. `limit`: records after which the rest is ignored.
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
    count = None if config.lasts_s is None else math.ceil(config.lasts_s * config.ticks_per_s) + 1
    beat = ticks(env, per_s=config.ticks_per_s, count=count)
    return beat.process(Poll(config), BYTES).set_parallelism(1).name(config.feed.name)


class Poll(KeyedProcessFunction):
    """At each tick, what the feed's reader has; never waits, but at the end of input."""

    def __init__(self, config: Polled) -> None:
        self._config = config
        self._reader: FeedReader | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("cursor-and-count", PICKLED))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        cursor, count = self._position()
        reader = self._reader
        if reader is None:
            ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
            reader = self._reader = FeedReader(self._config.feed, cursor, room=self._config.room)
        yield from self._hand_on(reader.take(self._config.most), count)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        cursor, _ = self._position()
        reader = self._reader
        if reader is None:
            reader = self._reader = FeedReader(self._config.feed, cursor, room=self._config.room)
        while not reader.exhausted:
            taken = reader.take(self._config.most)
            if not taken:
                reader.wait(0.01)
            yield from self._hand_on(taken, self._position()[1])

    def _hand_on(self, taken: list[Received], count: int) -> Iterator[bytes]:
        for received in taken:
            if self._config.limit is None or count < self._config.limit:
                yield self._encoded(received)
            count += 1
        if taken:
            self._state.update((taken[-1].cursor, count))

    def _encoded(self, received: Received) -> bytes:
        form = self._config.format
        return received.raw if form is None else encode(form.read(received.raw, received.position))

    def _position(self) -> tuple[str | None, int]:
        position: tuple[str | None, int] = self._state.value() or (None, 0)
        return position
