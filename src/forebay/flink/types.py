"""Types and names for operators: bytes in streams and state, side outputs, end times, and uids.

PyFlink pickles values without a type, so write access to a checkpoint would allow code to run in a job.
"""

from __future__ import annotations

from typing import Any

from pyflink.common import TypeInformation, Types
from pyflink.datastream import DataStream, OutputTag

from forebay.errors import SettingError
from forebay.flink.shards import name_of

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
"""As a type of state it would return tuples of numbers."""


class StateBytes(TypeInformation):
    """Values of state: `bytes`, or None, which PyFlink passes to Java unchanged. Only inside the JVM."""

    def get_java_type_info(self) -> Any:
        return BYTES.get_java_type_info()


STATE = StateBytes()

END_OF_TIME_MS = 2**63 - 2
END_OF_INPUT_MS = 2**63 - 2**40
"""An event-time timer that only the final watermark reaches, with room above it for further rounds."""


SET_BACK_MS = 1000
"""Smaller backward clock steps are ignored; shards wait that much longer."""


def side_output(stream: DataStream, tag: OutputTag) -> DataStream:
    """The side output `tag` of an operator, at the operator's parallelism.

    PyFlink adds a map at the environment's. Flink keeps a chain's output buffers under its last operator, so
    a restore at another parallelism would silently lose records in flight.
    """
    return stream.get_side_output(tag).set_parallelism(stream._j_data_stream.getParallelism())


def check_uid_free(env: Any, uid: str, where: str) -> None:
    if any(name_of(operator.getUid()) == uid for operator in _operators(env)):
        _refuse(where, uid)


def check_sink_free(env: Any, operator_name: str, name: str) -> None:
    if any(operator.getName() == operator_name for operator in _operators(env)):
        _refuse("write_kafka", name)


def _operators(env: Any) -> Any:
    return env._j_stream_execution_environment.getTransformations()


def _refuse(where: str, name: str) -> None:
    raise SettingError(
        f"{where}: name: {name!r} is taken by another operator of this environment; give each a name of its "
        f"own with name=, and keep it: a restart finds state by it"
    )
