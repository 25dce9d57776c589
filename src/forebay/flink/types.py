"""What operators hand on and keep: plain bytes in streams and in state, side outputs, the times of the end,
and the names that state is found by.

A checkpoint holds state, and elements where it catches them on their way. PyFlink pickles what it is told no
type for, and whoever can write a checkpoint could then run code in the job that restores it.
"""

from __future__ import annotations

from typing import Any

from pyflink.common import TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from forebay.errors import SettingError
from forebay.flink.restored import name_of

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""Elements of streams: `bytes`. As the type of state this one would give tuples of numbers."""


class StateBytes(TypeInformation):
    """Values of state: `bytes`, or None. Descriptors take it inside the JVM, as in a function's `open`.

    Of a type that it does not know PyFlink hands values to Java as they are, and Java keeps arrays of bytes.
    """

    def get_java_type_info(self) -> Any:
        return BYTES.get_java_type_info()


STATE = StateBytes()

END_OF_TIME_MS = 2**63 - 2
"""An event-time timer at this time fires with the final watermark."""
END_OF_INPUT_MS = 2**63 - 2**40
"""An event-time timer that only the final watermark reaches: processing-time timers no longer fire then.
There is room above it, because each turn at the end of the input is a timer set one later than the last."""


def side_output(stream: DataStream, tag: OutputTag) -> DataStream:
    """What the operator that gives `stream` gives to `tag`, at that operator's parallelism.

    PyFlink puts a map behind it, at the environment's parallelism. Where the operator has another, Flink
    chains the two at one parallelism and not at the next, and the chain ends with another operator. Flink
    keeps what was in the output buffers of a chain under its last operator, and does not look for it under
    any other: restored at another parallelism, records on their way would be lost without a word.
    """
    return stream.get_side_output(tag).set_parallelism(stream._j_data_stream.getParallelism())


def check_uid_free(env: Any, uid: str, where: str) -> None:
    """Raise `SettingError`, naming `where`, if an operator of the environment has this `uid`: state is found
    again by it.

    What `execute` has taken is forgotten: the same program may be built again.
    """
    if any(name_of(operator.getUid()) == uid for operator in _operators(env)):
        _refuse(where, uid)


def check_sink_free(env: Any, operator_name: str, where: str, name: str) -> None:
    """Raise `SettingError`, naming `where` and `name`, if an operator of the environment is called
    `operator_name`: for sinks that Flink gives uids of its own."""
    if any(operator.getName() == operator_name for operator in _operators(env)):
        _refuse(where, name)


def _operators(env: Any) -> Any:
    return env._j_stream_execution_environment.getTransformations()


def _refuse(where: str, name: str) -> None:
    raise SettingError(
        f"{where}: name: {name!r} is taken by another operator of this environment; give each a name of its "
        f"own with name=, and keep it: a restart finds state by it"
    )
