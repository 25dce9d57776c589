"""The document of a benchmark: one JSON file, and one with its requests, a line each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from forebay.bench.metrics import PERCENTILES, RequestSlo, RunFigures, run_figures
from forebay.bench.records import Chunk, EngineSample, LoadRun, RequestRecord
from forebay.bench.statistics import suffices
from forebay.bench.verdict import Verdict, judge
from forebay.errors import SettingError
from forebay.files import read_bytes, write_atomic

FORMAT = "forebay-bench/1"
MAX_DOCUMENT_BYTES = 256 << 20
MAX_REQUEST_BYTES = 2 << 30
MAX_RUNS = 10_000
DIGITS = 6
"""Microseconds: finer than the clock's noise."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    run: LoadRun
    figures: RunFigures
    slo: RequestSlo | None = None
    verdict: Verdict | None = None

    @property
    def word(self) -> str:
        return "" if self.verdict is None else self.verdict.word


def measured_run(run: LoadRun, slo: RequestSlo | None = None) -> MeasuredRun:
    return MeasuredRun(run, run_figures(run, slo), slo, judge(run))


@dataclass(frozen=True, slots=True)
class Report:
    command: str
    runs: tuple[MeasuredRun, ...]


def requests_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.requests.jsonl")


def document(report: Report) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "command": report.command,
        "runs": [_run_document(measured) for measured in report.runs],
    }


def write_report(path: Path, report: Report) -> None:
    """Write the document to `path` and its requests next to it; blocks. Raises `SettingError` on failure."""
    # Requests first: no document without its requests.
    lines = (
        orjson.dumps({"run": number, **request_document(record)})
        for number, measured in enumerate(report.runs)
        for record in measured.run.records
    )
    data = orjson.dumps(document(report), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        write_atomic(requests_path(path), b"".join(line + b"\n" for line in lines))
        write_atomic(path, data)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None


def read_report(path: Path) -> Report:
    """Read what `write_report` wrote; runs have no requests if their file is missing.

    Raises `SettingError` for another document, or one that is damaged or too large.
    """
    found = read_object(path)
    if found.get("format") != FORMAT:
        raise SettingError(
            f'{path}: not a document of forebay bench serve: expected "format": "{FORMAT}", '
            f"found {found.get('format')!r:.60}"
        )
    listed = listed_runs(path, found)
    runs = [_read_run(path, number, run) for number, run in enumerate(listed)]
    requests = requests_path(path)
    if requests.exists():
        records: list[list[RequestRecord]] = [[] for _ in runs]
        for number, record in read_records(requests, len(runs), "a request", _record_of):
            records[number].append(record)
        runs = [
            replace(measured, run=replace(measured.run, records=tuple(own)))
            for measured, own in zip(runs, records, strict=True)
        ]
    return Report(str(found.get("command", "")), tuple(runs))


def read_object(path: Path) -> dict[str, Any]:
    """Raises `SettingError` if the file has no JSON object or is too large."""
    try:
        found = orjson.loads(read_bytes(path, MAX_DOCUMENT_BYTES, str(path)))
    except orjson.JSONDecodeError as error:
        raise SettingError(f"{path}: not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def listed_runs(path: Path, found: Mapping[str, Any]) -> list[Any]:
    """Raises `SettingError` for no runs, or too many."""
    listed = found.get("runs")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_RUNS:
        raise SettingError(f'{path}: expected 1 to {MAX_RUNS} runs in "runs"')
    return listed


def request_document(record: RequestRecord) -> dict[str, Any]:
    """Without nulls; a chunk is `[at_s]` or `[at_s, tokens]`."""
    found: dict[str, Any] = {}
    for name in RequestRecord.__slots__:
        value = getattr(record, name)
        if name == "chunks":
            if value:
                found[name] = [_chunk_document(chunk) for chunk in value]
        elif value is not None:
            found[name] = round(value, DIGITS) if isinstance(value, float) else value
    return found


def _chunk_document(chunk: Chunk) -> list[float]:
    at_s = round(chunk.at_s, DIGITS)
    return [at_s] if chunk.tokens is None else [at_s, chunk.tokens]


def _run_document(measured: MeasuredRun) -> dict[str, Any]:
    run = measured.run
    return {
        "began_at": run.began_at,
        "duration_s": run.duration_s,
        "complete": run.complete,
        "verdict": verdict_document(measured.verdict),
        "asked": dict(run.asked),
        "slo": None if measured.slo is None else asdict(measured.slo),
        "figures": _figures_document(measured.figures),
        "samples": [sample_document(sample) for sample in run.samples],
        "provenance": dict(run.provenance),
    }


def verdict_document(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else {"word": verdict.word, **asdict(verdict)}


def sample_document(sample: EngineSample) -> dict[str, Any]:
    values = {name: value for name, value in sample.values.items() if math.isfinite(value)}
    return {"at_s": round(sample.at_s, DIGITS), "values": values}


def _figures_document(figures: RunFigures) -> dict[str, Any]:
    found = asdict(figures)
    for distribution in found["distributions"].values():
        percentiles = distribution["percentiles"]
        distribution["percentiles"] = {f"{number:g}": value for number, value in percentiles.items()}
    return found


@dataclass(frozen=True, slots=True)
class _RunDocument:
    began_at: str
    duration_s: float
    asked: dict[str, Any]
    figures: RunFigures
    complete: bool
    samples: tuple[EngineSample, ...]
    provenance: dict[str, Any]
    slo: RequestSlo | None = None
    verdict: Verdict | None = None


Record = TypeVar("Record")
_RUN = TypeAdapter(_RunDocument)
_REQUEST = TypeAdapter(RequestRecord)


def _read_run(path: Path, number: int, found: object) -> MeasuredRun:
    try:
        one = _RUN.validate_python(found)
    except ValidationError as error:
        raise SettingError(f"{path}: runs[{number}]{first_fault(error)}") from None
    for name, distribution in one.figures.distributions.items():
        for percent in PERCENTILES:
            if suffices(distribution.count, percent) and percent not in distribution.percentiles:
                place = f"runs[{number}].figures.distributions.{name}.percentiles"
                raise SettingError(f"{path}: {place}: {percent:g} is missing: was the file changed?")
    known = {name: getattr(one, name) for name in one.__slots__ if name not in ("figures", "slo", "verdict")}
    run = LoadRun(records=(), **known)
    return MeasuredRun(run, one.figures, one.slo, one.verdict)


def _record_of(found: dict[str, Any]) -> RequestRecord:
    found.setdefault("sent_s")
    found["chunks"] = [dict(zip(("at_s", "tokens"), each, strict=False)) for each in found.get("chunks", ())]
    return _REQUEST.validate_python(found)


def read_records(
    path: Path, runs: int, noun: str, record_of: Callable[[dict[str, Any]], Record]
) -> Iterator[tuple[int, Record]]:
    """Each record with the number of its run. Raises `SettingError` with the line."""
    data = read_bytes(path, MAX_REQUEST_BYTES, str(path))
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            found = orjson.loads(line)
            run = found.pop("run")
            if not isinstance(run, int) or not 0 <= run < runs:
                raise SettingError(f"{path}: line {number}: there is no run {run!r} in the document")
            yield run, record_of(found)
        except orjson.JSONDecodeError as error:
            raise SettingError(f"{path}: line {number}: not JSON: {error}") from None
        except ValidationError as error:
            raise SettingError(f"{path}: line {number}{first_fault(error)}") from None
        except (AttributeError, KeyError, TypeError):
            raise SettingError(f"{path}: line {number}: not {noun} of a run") from None


def first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
    return f"{place}: {fault['msg']}"
