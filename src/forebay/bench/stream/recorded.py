"""Reads the documents that `document` wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from forebay.bench.records import EngineSample
from forebay.bench.report.document import MAX_REQUEST_BYTES, first_fault, listed_runs, read_object
from forebay.bench.stream.document import FORMAT, MeasuredStream, events_path
from forebay.bench.stream.figures import StreamFigures
from forebay.bench.stream.options import EventSlo
from forebay.bench.stream.records import CheckpointTimes, EventRecord, Killed, ResultRecord, StreamRun
from forebay.bench.verdict import Verdict
from forebay.errors import SettingError
from forebay.files import read_bytes


@dataclass(frozen=True, slots=True)
class RecordedStreams:
    """A document of measured pipelines. `command`: `stream`, `goodput` or `find-rate`. `more`: its contents
    besides the runs."""

    command: str
    runs: tuple[MeasuredStream, ...]
    more: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _RunDocument:
    began_at: str
    duration_s: float
    asked: dict[str, Any]
    figures: StreamFigures
    verdict: Verdict
    slo: EventSlo | None
    complete: bool
    failure: str | None
    checkpoints: tuple[CheckpointTimes, ...]
    samples: tuple[EngineSample, ...]
    provenance: dict[str, Any]
    resolution_s: float
    others_cores: float | None
    cores: int
    planned_kills: int
    earlier_doubled: int
    resent: int
    strangers: int
    # Older documents have none of these.
    kills: tuple[Killed, ...] = ()
    followed: str = "event"
    countable: bool = True
    left_open: int = 0


KEPT = tuple(name for name in _RunDocument.__slots__ if name not in ("figures", "verdict", "slo", "followed"))
_RUN = TypeAdapter(_RunDocument)
_EVENT = TypeAdapter(EventRecord)
_RESULT = TypeAdapter(ResultRecord)


def read_streams(path: Path) -> RecordedStreams:
    """Read what `write_stream` wrote to `path`; runs have no events if their file is missing.

    Raises `SettingError` for another document, and for one that is damaged or too large.
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
        for number, record in _read_events(events_path(path), len(runs)):
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
        **{name: getattr(one, name) for name in KEPT},
    )
    return MeasuredStream(run, one.figures, one.verdict, one.slo)


def _read_events(path: Path, runs: int) -> Iterator[tuple[int, EventRecord]]:
    data = read_bytes(path, MAX_REQUEST_BYTES, str(path))
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            found = orjson.loads(line)
            run, of = found.pop("run"), found.pop("of", "event")
            if not isinstance(run, int) or not 0 <= run < runs:
                raise SettingError(f"{path}: line {number}: there is no run {run!r} in the document")
            yield run, _RESULT.validate_python(found) if of == "result" else _EVENT.validate_python(found)
        except orjson.JSONDecodeError as error:
            raise SettingError(f"{path}: line {number}: not JSON: {error}") from None
        except ValidationError as error:
            raise SettingError(f"{path}: line {number}{first_fault(error)}") from None
        except (AttributeError, KeyError, TypeError):
            raise SettingError(f"{path}: line {number}: not an event of a run") from None
