"""How long a source may emit records in one call of its function.

Meanwhile the task's barriers and timers wait.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.java_gateway import get_gateway

from forebay.clock import Clock, SystemClock
from forebay.flink.jvm_task import HasRoom, java_field, number_gauge, private_field, stream_task
from forebay.flink.metric_names import GROUP, READ_RATIO

log = logging.getLogger(__name__)

MAX_S = 0.05
WAIT_S = 0.01
IDLE_SHARE = 0.05
MAX_WAIT_S = 0.5
SHARE_EVERY_S = 0.5


class CallLimit:
    """The first record needs no check: Flink calls a function only if there is room for one."""

    def __init__(self, has_room: HasRoom, *, most_s: float = MAX_S, clock: Clock | None = None) -> None:
        self._has_room = has_room
        self._most_s = most_s
        self._clock = clock or SystemClock()
        self._until_s = 0.0

    def begin(self) -> None:
        self._until_s = self._clock.monotonic_s() + self._most_s

    def reached(self) -> bool:
        return not self._has_room() or self._clock.monotonic_s() >= self._until_s


class IdleWait:
    """A call waits for a twentieth of the idle time, as do barriers and timers.

    Each call crosses from Java to Python and back; an idle source makes two a second.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._came_s = self._clock.monotonic_s()

    def came(self) -> None:
        self._came_s = self._clock.monotonic_s()

    def wait_s(self) -> float:
        idle_s = self._clock.monotonic_s() - self._came_s
        return min(MAX_WAIT_S, max(WAIT_S, IDLE_SHARE * idle_s))


class ReadShare:
    """At most twice a second."""

    def __init__(self, context: RuntimeContext, clock: Clock | None = None) -> None:
        self._gauge = number_gauge(context.get_metrics_group().add_group(GROUP), READ_RATIO)
        self._clock = clock or SystemClock()
        self._reported_s = -math.inf

    def report(self, done: int, whole: int) -> None:
        now_s = self._clock.monotonic_s()
        if whole > 0 and (now_s - self._reported_s >= SHARE_EVERY_S or done >= whole):
            self._reported_s = now_s
            self._gauge.update(min(done, whole) / whole)


MAX_COUNT = 2**62


class SkippedCalls:
    """Skips calls that have nothing to do: each takes 30 µs, and a long line can leave millions.

    It sets a private field of Flink 2.3; if that is missing, the calls are made.
    """

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context
        self._possible = getattr(context, "_runtime_context", None) is not None
        self._numbers: tuple[Any, Any, int] | None = None

    def until(self, number: int) -> None:
        """Make the call of `number` the next one, or end the calls if it is after the last."""
        if not self._possible:
            return
        try:
            if self._numbers is None:
                reader = java_field(java_field(stream_task(self._context), "mainOperator"), "sourceReader")
                numbers = java_field(reader, "iterator")
                self._numbers = numbers, private_field(numbers, "current"), int(numbers.getTo())
            numbers, current, last = self._numbers
            current.setLong(numbers, min(number, last + 1))
        except Exception as error:
            log.warning("a long line makes the rest of its file slow: %s", error)
            self._possible = False


def calls(env: StreamExecutionEnvironment, *, count: int | None = None, name: str) -> KeyedStream:
    """The numbers 0 to `count` - 1 (None: endless) in order, on one key and one subtask.

    A restore resumes after the last one in the checkpoint.
    """
    last = (MAX_COUNT if count is None else count) - 1
    stream = env.from_source(NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), name)
    return on_one_key(stream.set_parallelism(1))


def on_one_key(stream: DataStream) -> KeyedStream:
    """Without a shuffle: a restored job must process elements between two tasks before its first
    checkpoint."""
    jvm = get_gateway().jvm
    keyed = stream.key_by(one_key, Types.LONG())
    with_key = jvm.org.apache.flink.streaming.api.datastream.DataStream(
        stream._j_data_stream.getExecutionEnvironment(),
        keyed._j_data_stream.getTransformation().getInputs().get(0),
    )
    unshuffled = jvm.org.apache.flink.streaming.api.datastream.DataStreamUtils.reinterpretAsKeyedStream(
        with_key, jvm.KeyByKeySelector(), Types.ROW([Types.LONG()]).get_java_type_info()
    )
    return KeyedStream(unshuffled, keyed._original_data_type_info, stream)


def one_key(_: object) -> int:
    return 0
