"""Files as sources and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.api.objects import ObjectStream
from forebay.codec import decode
from forebay.connectors.json_lines import dead_letter_json, result_json
from forebay.connectors.sinks import JsonlFiles, jsonl_sink
from forebay.records import DeadLetter, Result


def write_jsonl(stream: DataStream, path: str | Path) -> None:
    """Write a stream of results or dead letters as JSON lines, each exactly once."""
    encoded = isinstance(stream, ObjectStream)
    source: Any = stream.encoded if encoded else stream
    lines = source.map((lambda data: _line(decode(data))) if encoded else _line, Types.STRING())
    lines.set_parallelism(source._j_data_stream.getParallelism())
    jsonl_sink(lines, JsonlFiles(Path(path)))


def _line(record: Result | DeadLetter) -> str:
    return result_json(record) if isinstance(record, Result) else dead_letter_json(record)
