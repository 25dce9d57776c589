"""How much a source hands on in one call of its function: what there is room for, for a moment.

No barrier and no timer of the task gets through while a function hands records on, and a record for which
there is no room waits until the job behind it has worked one off: seconds, where that is a slow engine.
"""

from __future__ import annotations

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.java_gateway import get_gateway

from forebay.clock import Clock, SystemClock
from forebay.flink.jvm_task import HasRoom

MOST_S = 0.05
WAIT_S = 0.01
"""The longest wait for a record that is to come, in one call."""
IDLE_SHARE = 0.05
MOST_WAIT_S = 0.2


class CallLimit:
    """Says after each record whether the call has to end. The first record of a call needs no asking: Flink
    calls a function only where there is room for one."""

    def __init__(self, has_room: HasRoom, *, most_s: float = MOST_S, clock: Clock | None = None) -> None:
        self._has_room = has_room
        self._most_s = most_s
        self._clock = clock or SystemClock()
        self._until_s = 0.0

    def begin(self) -> None:
        """A call begins."""
        self._until_s = self._clock.monotonic_s() + self._most_s

    def reached(self) -> bool:
        """Whether the record just handed on has to be the call's last."""
        return not self._has_room() or self._clock.monotonic_s() >= self._until_s


class IdleWait:
    """How long a call waits for a record: a twentieth of the time for which none has come, `WAIT_S` at least
    and `MOST_WAIT_S` at most.

    A barrier, and a timer of the task, wait as long: hardly, where records come. Each call is a way from Java
    to Python and back, and a source to which nothing comes makes five a second.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._came_s = self._clock.monotonic_s()

    def came(self) -> None:
        """A record has come."""
        self._came_s = self._clock.monotonic_s()

    def wait_s(self) -> float:
        """The longest wait of a call that begins now."""
        idle_s = self._clock.monotonic_s() - self._came_s
        return min(MOST_WAIT_S, max(WAIT_S, IDLE_SHARE * idle_s))


MAX_COUNT = 2**62


def calls(env: StreamExecutionEnvironment, *, count: int | None = None, name: str) -> KeyedStream:
    """The numbers from 0 to `count` - 1 (None: without end) on one key, one subtask, in order: calls of the
    function that processes the stream, each as soon as the one before has returned and there is room for a
    record behind it.

    Restored from a checkpoint, the stream goes on with the number after the last one that the checkpoint
    holds.
    """
    last = (MAX_COUNT if count is None else count) - 1
    stream = env.from_source(NumberSequenceSource(0, last), WatermarkStrategy.no_watermarks(), name)
    return on_one_key(stream.set_parallelism(1))


def on_one_key(stream: DataStream) -> KeyedStream:
    """`stream`, of one subtask, keyed by one key, in the task that it comes from.

    `key_by` would shuffle: between two tasks elements pile up, of which each may stand for much work, and a
    restored job does all of that before it can complete a checkpoint.
    """
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
    """The key of streams that one subtask handles in order."""
    return 0
