"""The document of measured pipelines: one JSON file, and one with the events, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from forebay.bench.records import EngineSample
from forebay.bench.report.document import (
    DIGITS,
    first_fault,
    listed_runs,
    read_object,
    read_records,
    sample_document,
    verdict_document,
)
from forebay.bench.stream.events import EventSlo
from forebay.bench.stream.figures import StreamFigures, stream_figures
from forebay.bench.stream.records import EventRecord, Killed, MeasuredCheckpoint, ResultRecord, StreamRun
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
        "samples": [sample_document(sample) for sample in run.samples],
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
    """Without default values, except `results`."""
    found = {each.name: (getattr(event, each.name), each.default) for each in fields(event)}
    return {
        name: round(value, DIGITS) if isinstance(value, float) else value
        for name, (value, default) in found.items()
        if name == "results" or value != default
    }


def event_lines(measured: Sequence[MeasuredStream]) -> Iterator[bytes]:
    """Each with the number of its run."""
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


@dataclass(frozen=True, slots=True)
class RecordedStreams:
    command: str
    runs: tuple[MeasuredStream, ...]
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _StreamRunDocument:
    began_at: str
    duration_s: float
    asked: dict[str, Any]
    figures: StreamFigures
    verdict: Verdict
    slo: EventSlo | None
    complete: bool
    failure: str | None
    checkpoints: tuple[MeasuredCheckpoint, ...]
    samples: tuple[EngineSample, ...]
    provenance: dict[str, Any]
    resolution_s: float
    others_cores: float | None
    cores: int
    planned_kills: int
    earlier_doubled: int
    resent: int
    strangers: int
    kills: tuple[Killed, ...] = ()
    followed: str = "event"
    countable: bool = True
    left_open: int = 0


NOT_OF_RUN = ("figures", "verdict", "slo", "followed")
_RUN = TypeAdapter(_StreamRunDocument)
_EVENT = TypeAdapter(EventRecord)
_RESULT = TypeAdapter(ResultRecord)


def read_streams(path: Path) -> RecordedStreams:
    """Read what `write_stream` wrote; runs have no events if their file is missing.

    Raises `SettingError` for another document, or one that is damaged or too large.
    """
    found = read_object(path)
    if found.get("format") != FORMAT:
        raise SettingError(
            f'{path}: not a document of forebay bench stream: expected "format": "{FORMAT}", '
            f"found {found.get('format')!r:.60}"
        )
    runs = [_read_run(path, number, each) for number, each in enumerate(listed_runs(path, found))]
    if events_path(path).exists():
        events: list[list[EventRecord]] = [[] for _ in runs]
        results: list[list[ResultRecord]] = [[] for _ in runs]
        for number, record in read_records(events_path(path), len(runs), "an event", _record_of):
            if isinstance(record, ResultRecord):
                results[number].append(record)
            else:
                events[number].append(record)
        runs = [
            replace(one, run=_with_events(one.run, own, many))
            for one, own, many in zip(runs, events, results, strict=True)
        ]
    more = {name: value for name, value in found.items() if name not in ("format", "command", "runs")}
    return RecordedStreams(str(found.get("command", "")), tuple(runs), more)


def _with_events(run: StreamRun, events: list[EventRecord], results: list[ResultRecord]) -> StreamRun:
    return replace(run, events=tuple(events), results=run.results if run.results is None else tuple(results))


def _read_run(path: Path, number: int, found: object) -> MeasuredStream:
    try:
        one = _RUN.validate_python(found)
    except ValidationError as error:
        raise SettingError(f"{path}: runs[{number}]{first_fault(error)}") from None
    run = StreamRun(
        events=(),
        results=None if one.followed == "event" else (),
        **{name: getattr(one, name) for name in one.__slots__ if name not in NOT_OF_RUN},
    )
    return MeasuredStream(run, one.figures, one.verdict, one.slo)


def _record_of(found: dict[str, Any]) -> EventRecord:
    kind = _RESULT if found.pop("of", "event") == "result" else _EVENT
    return kind.validate_python(found)
