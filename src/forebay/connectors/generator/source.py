"""Made-up posts: a base rate, with bursts of a higher one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

import orjson
from pyflink.common import WatermarkStrategy
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import encode, pack_state, unpack_state
from forebay.connectors.generator.posts import TOPICS, post, topic_of
from forebay.connectors.python_source import MAX_COUNT, WAIT_S, CallLimit, ReadShare, calls
from forebay.errors import SettingError
from forebay.flink.jvm_task import output_room
from forebay.flink.types import BYTES, STATE
from forebay.records import Event


@dataclass(frozen=True, slots=True)
class Burst:
    start_s: float
    duration_s: float
    factor: float = 4.0
    topic: str = "outage"
    share: float = 0.8

    def __post_init__(self) -> None:
        if self.start_s < 0 or self.duration_s <= 0 or self.factor <= 0 or not 0 <= self.share <= 1:
            raise SettingError(
                "a burst needs start_s >= 0, duration_s > 0, factor > 0 and share from 0 to 1, found "
                f"{self.start_s}, {self.duration_s}, {self.factor}, {self.share}"
            )


@dataclass(frozen=True, slots=True)
class PostSchedule:
    """Ordered by time, without overlap."""

    rate_per_s: float
    bursts: tuple[Burst, ...] = ()

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise SettingError(f"rate_per_s must be above 0, found {self.rate_per_s}")
        for burst, following in zip(self.bursts, self.bursts[1:], strict=False):
            if burst.start_s + burst.duration_s > following.start_s:
                raise SettingError("bursts must be in order of time and must not overlap")

    def due_s(self, index: int) -> float:
        before, at_s = 0.0, 0.0
        for start_s, end_s, rate_per_s in self._segments():
            in_segment = (end_s - start_s) * rate_per_s
            if index < before + in_segment:
                return start_s + (index - before) / rate_per_s
            before, at_s = before + in_segment, end_s
        return at_s + (index - before) / self.rate_per_s

    def burst_at(self, time_s: float) -> Burst | None:
        for burst in self.bursts:
            if burst.start_s <= time_s < burst.start_s + burst.duration_s:
                return burst
        return None

    def _segments(self) -> Iterator[tuple[float, float, float]]:
        at_s = 0.0
        for burst in self.bursts:
            end_s = burst.start_s + burst.duration_s
            yield at_s, burst.start_s, self.rate_per_s
            yield burst.start_s, end_s, self.rate_per_s * burst.factor
            at_s = end_s


START_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""


LONGEST_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Generator:
    """`paced`: posts are emitted when due."""

    count: int | None = 1000
    rate_per_s: float = 10.0
    bursts: tuple[Burst, ...] = ()
    seed: int = 0
    paced: bool = True

    @property
    def schedule(self) -> PostSchedule:
        return PostSchedule(self.rate_per_s, self.bursts)

    def event(self, index: int) -> Event:
        due_s = self.schedule.due_s(index)
        burst = self.schedule.burst_at(due_s)
        topic = topic_of(
            self.seed, index, burst_topic=burst.topic if burst else None, share=burst.share if burst else 0.0
        )
        time_ms = START_MS + int(due_s * 1000)
        moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
        fields = {**post(self.seed, index, topic), "time": moment.isoformat(timespec="milliseconds")}
        return Event(raw=orjson.dumps(fields), fields=fields, time_ms=time_ms, position=f"generator@{index}")


def generator_source(env: StreamExecutionEnvironment, config: Generator) -> DataStream:
    """Raises `SettingError`."""
    if config.count is not None and config.count < 1:
        raise SettingError(f"count must be at least 1, found {config.count}")
    for burst in config.bursts:
        if burst.topic not in TOPICS:
            raise SettingError(f"a burst's topic must be one of {', '.join(TOPICS)}, found {burst.topic!r}")
    if not config.paced:
        last = (config.count or MAX_COUNT) - 1
        numbers = env.from_source(
            NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), "numbers"
        ).set_parallelism(1)
        return numbers.map(_Posts(config), BYTES).set_parallelism(1).name("generator")
    beat = calls(env, count=calls_of(config), name="calls of generator")
    return beat.process(GiveDue(config), BYTES).set_parallelism(1).name("generator")


def calls_of(config: Generator) -> int | None:
    if config.count is None:
        return None
    # A call emits a post or has waited for `WAIT_S`; some more for rounding.
    return config.count + math.ceil(1.01 * config.schedule.due_s(config.count - 1) / WAIT_S) + 1


class _Posts:
    def __init__(self, config: Generator) -> None:
        self._config = config

    def __call__(self, index: int) -> bytes:
        return encode(self._config.event(index))


class GiveDue(KeyedProcessFunction):
    def __init__(
        self, config: Generator, *, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._config = config
        self._schedule = config.schedule
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._seen_s: float | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("elapsed-and-next", STATE))
        self._call = CallLimit(output_room(runtime_context), clock=self._clock)
        self._share = ReadShare(runtime_context, self._clock)
        self._context = runtime_context

    def process_element(self, value: object, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        found = self._state.value()
        if found is None:
            elapsed_s, index = 0.0, 0
        else:
            elapsed_s, index = unpack_state(found, "place of the generator")
        elapsed_s += self._passed_s()
        self._call.begin()
        wait_s = self._schedule.due_s(index) - elapsed_s if self._left(index) else 0.0
        if wait_s > 0:
            slept_s = min(wait_s, WAIT_S)
            self._sleep(slept_s)
            elapsed_s += max(slept_s, self._passed_s())
        while self._left(index) and self._schedule.due_s(index) <= elapsed_s + 1e-9:
            yield encode(self._config.event(index))
            index += 1
            if self._call.reached():
                break
        self._state.update(pack_state(elapsed_s, index))
        self._share.report(index, self._config.count or 0)

    def _passed_s(self) -> float:
        now_s = self._clock.monotonic_s()
        passed_s = 0.0 if self._seen_s is None else min(now_s - self._seen_s, LONGEST_STEP_S)
        self._seen_s = now_s
        return passed_s

    def _left(self, index: int) -> bool:
        return self._config.count is None or index < self._config.count
