"""The document of measured pipelines: one JSON file, and a file with the events of each run, one per line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from forebay.bench.report.document import DIGITS, verdict_document
from forebay.bench.stream.figures import StreamFigures, stream_figures
from forebay.bench.stream.options import EventSlo
from forebay.bench.stream.records import EventRecord, StreamRun
from forebay.bench.stream.verdict import judge_stream
from forebay.bench.verdict import Verdict
from forebay.errors import SettingError
from forebay.files import write_atomic

FORMAT = "forebay-bench-stream/1"


@dataclass(frozen=True, slots=True)
class MeasuredStream:
    run: StreamRun
    figures: StreamFigures
    verdict: Verdict
    slo: EventSlo | None = None


def measured_stream(run: StreamRun, slo: EventSlo | None = None) -> MeasuredStream:
    return MeasuredStream(run, stream_figures(run, slo), judge_stream(run), slo)


def events_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.events.jsonl")


def stream_document(measured: Sequence[MeasuredStream], command: str = "stream") -> dict[str, Any]:
    """The runs as a JSON value, without their events."""
    return {"format": FORMAT, "command": command, "runs": [run_document(each) for each in measured]}


def run_document(measured: MeasuredStream) -> dict[str, Any]:
    run = measured.run
    return {
        "began_at": run.began_at,
        "duration_s": run.duration_s,
        "complete": run.complete,
        "failure": run.failure,
        "verdict": verdict_document(measured.verdict),
        "asked": dict(run.asked),
        "slo": None if measured.slo is None else asdict(measured.slo),
        "figures": _with_texts(asdict(measured.figures)),
        "checkpoints": [asdict(each) for each in run.checkpoints],
        "samples": [
            {
                "at_s": round(sample.at_s, DIGITS),
                "values": {name: value for name, value in sample.values.items() if math.isfinite(value)},
            }
            for sample in run.samples
        ],
        "resolution_s": run.resolution_s,
        "others_cores": run.others_cores,
        "cores": run.cores,
        "planned_kills": run.planned_kills,
        "kills": [asdict(each) for each in run.kills],
        "earlier_doubled": run.earlier_doubled,
        "resent": run.resent,
        "strangers": run.strangers,
        "followed": run.noun,
        "countable": run.countable,
        "left_open": run.left_open,
        "provenance": dict(run.provenance),
    }


def _with_texts(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        f"{key:g}" if isinstance(key, float | int) else key: _with_texts(each) for key, each in value.items()
    }


def event_document(event: EventRecord) -> dict[str, Any]:
    """An event as a JSON value without default values, except `results`."""
    found = {each.name: (getattr(event, each.name), each.default) for each in fields(event)}
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, (value, default) in found.items()
        if name == "results" or value != default
    }


def event_lines(measured: Sequence[MeasuredStream]) -> Iterator[bytes]:
    """Every event of every run, and every result that stands for many, with the number of its run."""
    for number, each in enumerate(measured):
        for event in each.run.events:
            yield orjson.dumps({"run": number, **event_document(event)}) + b"\n"
        for result in each.run.results or ():
            yield orjson.dumps({"run": number, "of": "result", **event_document(result)}) + b"\n"


def write_stream(path: Path, measured: Sequence[MeasuredStream], document: dict[str, Any]) -> None:
    """Write the document to `path` and its events next to it; blocks. Raises `SettingError` on failure."""
    data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        write_atomic(events_path(path), b"".join(event_lines(measured)))
        write_atomic(path, data)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None
