"""Measures one point after the other; a failure is recorded, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.grid.engines import RunningEngine
from benchmarks.grid.streamed import (
    Session,
    Streamed,
    figure,
    first_line,
    stream_each,
    stream_load,
    streamed_document,
)
from benchmarks.interplay.pipeline import (
    BASE,
    BASE_SETTINGS,
    InterplayOptions,
    Point,
    by_engine,
    by_pipeline,
    open_pipeline,
    sized,
    write_events,
)
from forebay.bench.client import measure
from forebay.bench.load.schedules import Bursts, ClosedLoop, Poisson, make_load
from forebay.bench.load.workloads import CappedExponential, Exactly, RandomTokens
from forebay.bench.metrics import run_figures
from forebay.bench.stream.events import EventLoad
from forebay.errors import EngineError, ForebayError
from forebay.pages.charts import Bar, bar_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import Colour

StartEngine = Callable[[float], AbstractContextManager[RunningEngine]]
"""Starts the engine with a KV cache of this size in GiB."""
OpenPipeline = Callable[
    [str, str | None, InterplayOptions, Mapping[str, Any]], AbstractContextManager[Session]
]


@dataclass(frozen=True, slots=True)
class PointRun:
    """The figures of a point; `error`: what failed."""

    point: Point
    stream: Streamed | None = None
    error: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        found = () if self.stream is None else self.stream.reasons
        return found if self.error is None else (*found, self.error)


@dataclass(slots=True)
class InterplayMeasurement:
    """`rate_per_s`: the rate of events, known once the first engine runs."""

    options: InterplayOptions
    start: StartEngine
    open: OpenPipeline = open_pipeline
    complete: bool = True
    rate_per_s: float | None = None

    def found(self, points: Sequence[Point]) -> Iterator[PointRun]:
        for kv_cache_gib, group in by_engine(points):
            if not self.complete:
                return
            try:
                with self.start(kv_cache_gib) as engine:
                    self.rate_per_s = self.rate_per_s or self.options.rate_per_s or self._rate(engine)
                    for settings, alike in by_pipeline(group):
                        if self.complete:
                            yield from self._points(engine, settings, alike)
            except ForebayError as error:
                yield from (PointRun(point, error=f"engine: {first_line(error)}") for point in group)

    def _rate(self, engine: RunningEngine) -> float:
        options, target = self.options, engine.target()
        lengths = CappedExponential(options.mean_tokens, options.limit_tokens)
        workload = RandomTokens(Exactly(options.prompt_tokens), lengths)
        measure(target, make_load(ClosedLoop(2), workload, 4, seed=options.seed))
        run = measure(target, make_load(Bursts(), workload, min(options.events, 64), seed=options.seed))
        answered = run_figures(run).requests_per_s
        if not answered:
            raise EngineError(f"{target.name} answered 0 of {len(run.records)} requests")
        return round(answered * options.load, 3)

    def _points(
        self, engine: RunningEngine, settings: Mapping[str, Any], alike: Sequence[Point]
    ) -> Iterator[PointRun]:
        options = sized(self.options, settings, self.rate_per_s or 1.0)
        found = stream_each(
            alike,
            partial(self.open, engine.urls[0], engine.model, options, settings),
            lambda session, point: self._measured(session, options, point),
        )
        for point, stream, failure in found:
            self.complete = stream is None or stream.run.complete or failure is not None
            yield PointRun(point, stream, failure)

    def _measured(self, session: Session, options: InterplayOptions, point: Point) -> Streamed:
        with TemporaryDirectory(prefix="forebay-interplay-") as folder:
            load = EventLoad(
                schedule=Poisson(self.rate_per_s or 1.0),
                events=options.events,
                data=write_events(Path(folder) / "events.jsonl", options, point.events),
                seed=options.seed,
            )
            return stream_load(session, load)


FORMAT = "forebay-bench-interplay/1"
NONE = "–"
COLUMNS: Mapping[str, tuple[tuple[str, ...], float, int]] = {
    "running, mean": (("stream", "resources", "running_mean"), 1, 1),
    "waiting, most": (("stream", "resources", "waiting_max"), 1, 0),
    "KV cache, most": (("stream", "resources", "kv_cache_usage_max"), 100, 0),
    "prefix hits": (("stream", "resources", "prefix_hit_share"), 100, 0),
    "preemptions": (("stream", "resources", "preemptions"), 1, 0),
    "engine, cores": (("stream", "resources", "engine_cores_mean"), 1, 2),
    "pipeline, cores": (("stream", "resources", "run_cores_mean"), 1, 2),
    "answered p50, s": (("stream", "answered_s", "p50"), 1, 2),
    "longest, s": (("stream", "answered_s", "max"), 1, 2),
    "of it for a slot": (("stream", "stages_s", "slot", "p50"), 1, 2),
    "prefill": (("stream", "stages_s", "prefill", "p50"), 1, 2),
    "decode": (("stream", "stages_s", "decode", "p50"), 1, 2),
    "to commit, s": (("stream", "stages_s", "commit", "p50"), 1, 2),
    "lag, most": (("stream", "most_lag"), 1, 0),
    "checkpoint p50, ms": (("stream", "checkpoint_s", "p50"), 1000, 0),
    "state, kB": (("stream", "state_bytes", "mean"), 1e-3, 0),
}
"""Columns of the table: place in a cell's document, factor, decimals."""
PERCENT = {"KV cache, most", "prefix hits"}


def interplay_document(
    options: InterplayOptions,
    found: Sequence[PointRun],
    *,
    rate_per_s: float | None,
    expected: int,
    complete: bool,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    cells = [_cell(each) for each in found]
    return {
        "format": FORMAT,
        "complete": complete,
        "valid": complete and len(cells) == expected and all(cell["valid"] for cell in cells),
        "options": asdict(options),
        "base": dict(BASE_SETTINGS),
        "rate_per_s": rate_per_s,
        "cells": cells,
        "provenance": dict(provenance),
    }


def _cell(found: PointRun) -> dict[str, Any]:
    point = found.point
    return {
        "factor": point.factor,
        "value": point.value,
        "settings": dict(point.settings),
        "events": asdict(point.events),
        "kv_cache_gib": point.kv_cache_gib,
        "valid": not found.reasons,
        "reasons": list(found.reasons),
        "error": found.error,
        "stream": None if found.stream is None else streamed_document(found.stream),
    }


SHORT = ("running, mean", "KV cache, most", "prefix hits", "preemptions", "answered p50, s", "to commit, s")
"""Columns for which a terminal has room."""


def point_rows(document: Mapping[str, Any], columns: Sequence[str] = tuple(COLUMNS)) -> list[list[str]]:
    """Every point with its figures, header first; invalid ones in brackets."""
    cells = document["cells"]
    told = {
        name: COLUMNS[name]
        for name in columns
        if any(figure(cell, *COLUMNS[name][0]) is not None for cell in cells)
    }
    rows = [["", *told]]
    for cell in cells:
        row = [f"{cell['factor']}: {cell['value']}"]
        for name, (path, scale, digits) in told.items():
            value = figure(cell, *path)
            text = NONE if value is None else f"{value * scale:,.{digits}f}" + " %" * (name in PERCENT)
            row.append(text if cell["valid"] else f"({text})")
        rows.append(row)
    return rows


ENGINE: Colour = "blue"
STREAM: Colour = "red"
STATE: Colour = "green"
PANELS: Sequence[tuple[str, tuple[str, ...], float, Colour]] = (
    ("running at the engine, mean", ("stream", "resources", "running_mean"), 1, ENGINE),
    ("KV cache used, most, %", ("stream", "resources", "kv_cache_usage_max"), 100, ENGINE),
    ("prefix hits, % of prompt tokens", ("stream", "resources", "prefix_hit_share"), 100, ENGINE),
    ("preemptions", ("stream", "resources", "preemptions"), 1, ENGINE),
    ("event to answer, median, s", ("stream", "answered_s", "p50"), 1, STREAM),
    ("event to commit, median, s", ("stream", "committed_s", "p50"), 1, STREAM),
    ("checkpoint, median, ms", ("stream", "checkpoint_s", "p50"), 1000, STATE),
)


def interplay_picture(document: Mapping[str, Any]) -> Picture:
    """A panel for each figure, a bar for each point; dashed: the base point, twice; pale: invalid."""
    figures = []
    for title, where, scale, colour in PANELS:
        bars, base = [], list[float]()
        for cell in document["cells"]:
            value = figure(cell, *where)
            scaled = 0.0 if value is None else value * scale
            name = BASE if cell["factor"] == BASE else f"{cell['factor']}: {cell['value']}"
            words = "–" if value is None else f"{scaled:.3g}"
            bars.append(Bar(name, scaled, words, colour, pale=not cell["valid"]))
            base += [scaled] if cell["factor"] == BASE else []
        log = colour == STREAM
        figures.append(bar_figure(title, bars, x_name=title, label=title, log=log, marks=base))
    return Picture("", figures, columns=3)
