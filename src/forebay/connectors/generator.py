"""A seeded stream of posts with bursts planted in it, at its real rate or as fast as it is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import orjson
from pyflink.common import WatermarkStrategy
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor

from forebay.codec import encode
from forebay.connectors.posts import TOPICS, post, topic_of
from forebay.connectors.schedule import Burst, Schedule
from forebay.connectors.ticks import MAX_COUNT, ticks
from forebay.connectors.types import BYTES, PICKLED
from forebay.errors import SettingError
from forebay.records import Event

START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""

TICKS_PER_S = 200.0


@dataclass(frozen=True, slots=True)
class Generator:
    """`count` posts (None: without end), `rate_per_s` in event time from `start_ms`, with `bursts`.

    `paced`: each post leaves when it is due (to 5 ms) after the job's start; a job that was down or
    held up goes on where it stopped, as many seconds late. Otherwise posts leave as fast as they are taken.
    """

    count: int | None = 1000
    rate_per_s: float = 10.0
    bursts: tuple[Burst, ...] = ()
    seed: int = 0
    paced: bool = True
    start_ms: int = START_MS

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.rate_per_s, self.bursts)

    def event(self, index: int) -> Event:
        """Post `index`, the same each time: position `generator@index`, time its start plus its due time."""
        due_s = self.schedule.due_s(index)
        burst = self.schedule.burst_at(due_s)
        topic = topic_of(
            self.seed, index, burst_topic=burst.topic if burst else None, share=burst.share if burst else 0.0
        )
        time_ms = self.start_ms + int(due_s * 1000)
        moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
        fields = {**post(self.seed, index, topic), "time": moment.isoformat(timespec="milliseconds")}
        return Event(raw=orjson.dumps(fields), fields=fields, time_ms=time_ms, position=f"generator@{index}")


def generator_source(env: StreamExecutionEnvironment, config: Generator) -> DataStream:
    """The posts of `config` as bytes of events, in order. Raises `SettingError` for wrong settings."""
    if config.count is not None and config.count < 1:
        raise SettingError(f"count must be at least 1, found {config.count}")
    for burst in config.bursts:
        if burst.topic not in TOPICS:
            raise SettingError(f"a burst's topic must be one of {', '.join(TOPICS)}, found {burst.topic!r}")
    schedule = config.schedule
    if not config.paced:
        last = (config.count or MAX_COUNT) - 1
        numbers = env.from_source(
            NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "numbers"
        ).set_parallelism(1)
        return numbers.map(_Posts(config), BYTES).set_parallelism(1).name("generator")
    count = None
    if config.count is not None:
        count = math.ceil(schedule.due_s(config.count - 1) * TICKS_PER_S) + 1
    beat = ticks(env, per_s=TICKS_PER_S, count=count)
    return beat.process(ReleaseDue(config), BYTES).set_parallelism(1).name("generator")


class _Posts:
    def __init__(self, config: Generator) -> None:
        self._config = config

    def __call__(self, index: int) -> bytes:
        return encode(self._config.event(index))


class ReleaseDue(KeyedProcessFunction):
    """At tick k, the posts due by k ticks after the start that have not left. Its only clock is the ticks."""

    def __init__(self, config: Generator) -> None:
        self._config = config
        self._schedule = config.schedule

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("tick-and-next", PICKLED))

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        tick, index = self._state.value() or (0, 0)
        while self._left(index) and self._schedule.due_s(index) <= tick / TICKS_PER_S + 1e-9:
            yield encode(self._config.event(index))
            index += 1
        self._state.update((tick + 1, index))

    def _left(self, index: int) -> bool:
        return self._config.count is None or index < self._config.count
