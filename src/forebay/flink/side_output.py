"""What an operator gives at its side, without a change to the graph at another parallelism."""

from __future__ import annotations

from pyflink.datastream import DataStream, OutputTag


def side_output(stream: DataStream, tag: OutputTag) -> DataStream:
    """What the operator that gives `stream` gives to `tag`, at that operator's parallelism.

    PyFlink puts a map behind it, at the environment's parallelism. Where the operator has another, Flink
    chains the two at one parallelism and not at the next, and the chain ends with another operator. Flink
    keeps what was in the output buffers of a chain under its last operator, and does not look for it under
    any other: restored at another parallelism, records on their way would be lost without a word.
    """
    return stream.get_side_output(tag).set_parallelism(stream._j_data_stream.getParallelism())
