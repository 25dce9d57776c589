"""Types and names for operators: bytes in streams and state, side outputs, times of the end, and uids.

A checkpoint holds state, and elements in flight. PyFlink pickles values without a type, and anyone who can
write a checkpoint can run code in the job that restores it.
"""

from __future__ import annotations

from typing import Any

from pyflink.common import TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from forebay.errors import SettingError
from forebay.flink.restored import name_of

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""Elements of streams: `bytes`. As a type of state it would return tuples of numbers."""


class StateBytes(TypeInformation):
    """Values of state: `bytes`, or None. For descriptors inside the JVM, as in a function's `open`.

    PyFlink passes values of a type that it does not know to Java unchanged, and Java keeps arrays of bytes.
    """

    def get_java_type_info(self) -> Any:
        return BYTES.get_java_type_info()


STATE = StateBytes()

END_OF_TIME_MS = 2**63 - 2
"""An event-time timer at this time fires with the final watermark."""
END_OF_INPUT_MS = 2**63 - 2**40
"""An event-time timer that only the final watermark reaches; processing-time timers no longer fire then. Room
is left above it, because each round at the end of the input sets a timer one later."""


def side_output(stream: DataStream, tag: OutputTag) -> DataStream:
    """The side output `tag` of an operator, at the operator's parallelism.

    PyFlink adds a map at the environment's parallelism. If that differs, the chain of the two ends with
    another operator at some parallelisms. Flink keeps a chain's output buffers under its last operator, so
    after a restore at another parallelism, records in flight would be silently lost.
    """
    return stream.get_side_output(tag).set_parallelism(stream._j_data_stream.getParallelism())


def check_uid_free(env: Any, uid: str, where: str) -> None:
    """Raise `SettingError`, naming `where`, if an operator of the environment has this `uid`, by which its
    state is found.

    Operators that `execute` has submitted do not count: the same program may be built again.
    """
    if any(name_of(operator.getUid()) == uid for operator in _operators(env)):
        _refuse(where, uid)


def check_sink_free(env: Any, operator_name: str, name: str) -> None:
    """Raise `SettingError`, naming `name`, if an operator of the environment is called `operator_name`: for
    Kafka sinks, to which Flink gives uids of its own."""
    if any(operator.getName() == operator_name for operator in _operators(env)):
        _refuse("write_kafka", name)


def _operators(env: Any) -> Any:
    return env._j_stream_execution_environment.getTransformations()


def _refuse(where: str, name: str) -> None:
    raise SettingError(
        f"{where}: name: {name!r} is taken by another operator of this environment; give each a name of its "
        f"own with name=, and keep it: a restart finds state by it"
    )
