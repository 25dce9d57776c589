"""Encoded results and dead letters as JSON lines, for sinks of text."""

from __future__ import annotations

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.codec import decode
from forebay.connectors.letters import dead_letter_json, result_json


def result_lines(results: DataStream) -> DataStream:
    """Each result as one line of JSON, at the stream's own parallelism: order within a subtask stays."""
    lines = results.map(lambda data: result_json(decode(data)), Types.STRING()).name("results as JSON")
    return lines.set_parallelism(results._j_data_stream.getParallelism())


def dead_letter_lines(letters: DataStream) -> DataStream:
    """Each dead letter as one line of JSON, at the stream's own parallelism."""
    lines = letters.map(lambda data: dead_letter_json(decode(data)), Types.STRING())
    return lines.name("dead letters as JSON").set_parallelism(letters._j_data_stream.getParallelism())
