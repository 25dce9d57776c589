"""A steady beat from Flink itself: what drives sources that are written in Python.

PyFlink has no source API for Python. A Python function that waits would hold up checkpoint barriers; so
nothing in Python waits, and a Java source paces instead.
"""

from __future__ import annotations

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.datastream.connectors import Source
from pyflink.java_gateway import get_gateway

MAX_COUNT = 2**62


def ticks(env: StreamExecutionEnvironment, *, per_s: float, count: int | None = None) -> DataStream:
    """A stream of `count` (None: without end) empty values on one key, `per_s` each second, one subtask.

    After a stall of less than a second the ticks missed come at once; older ones come late. Restored from a
    checkpoint, the stream goes on with the tick after the last one that the checkpoint holds.
    """
    jvm = get_gateway().jvm
    text = Types.STRING().get_java_type_info()
    # The generator that ships with Flink looks each index up in a list: an empty one gives nulls.
    nothing = jvm.org.apache.flink.connector.datagen.functions.IndexLookupGeneratorFunction(
        text, jvm.java.util.ArrayList()
    )
    pace = jvm.org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy.perSecond(
        float(per_s)
    )
    source = Source(
        jvm.org.apache.flink.connector.datagen.source.DataGeneratorSource(
            nothing, MAX_COUNT if count is None else count, pace, text
        )
    )
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), f"{per_s:g} ticks per second")
    return stream.set_parallelism(1).key_by(one_key, Types.LONG())


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
