"""What drives sources that are written in Python: PyFlink has no source API for it.

Flink's own source of numbers calls a Python function in the same task, one number after another. The function
waits for a record where none has come, only for a moment: it would hold up checkpoint barriers. A source that
paces, in a task of its own, would not do: what it has given piles up in front of a function that is held
back, and all of that has to be worked off after a restore before a checkpoint can complete.
"""

from __future__ import annotations

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway

from forebay.errors import ForebayError
from forebay.flink_types import STATE

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


def refuse_older(runtime_context: RuntimeContext, state: str) -> None:
    """Raise `ForebayError` where the checkpoint that was restored holds `state`, which older versions kept.

    To be called where there is a key: in the first call of a run.
    """
    if runtime_context.get_state(ValueStateDescriptor(state, STATE)).value() is not None:
        raise ForebayError(
            f"the checkpoint is of an older version, which kept its place in the source in another form "
            f"({state}): finish the run with that version, or start over"
        )


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
