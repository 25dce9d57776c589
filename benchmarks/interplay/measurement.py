"""Measures one point after the other; a failure is recorded, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.grid.engines import RunningEngine
from benchmarks.grid.streamed import Session, Streamed, first_line, stream_each, stream_load
from benchmarks.interplay.factors import Point, by_engine, by_pipeline
from benchmarks.interplay.pipeline import InterplayOptions, open_pipeline, sized, write_events
from forebay.bench.client import measure
from forebay.bench.load.lengths import CappedExponential, Exactly
from forebay.bench.load.plan import make_load
from forebay.bench.load.schedules import Bursts, ClosedLoop, Poisson
from forebay.bench.load.workloads import RandomTokens
from forebay.bench.metrics import run_figures
from forebay.bench.stream.options import EventLoad
from forebay.errors import EngineError, ForebayError

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
    """`rate_per_s`: the rate of events, known once the first engine runs. `complete`: False after an
    interruption; nothing more is measured then."""

    options: InterplayOptions
    start: StartEngine
    open: OpenPipeline = open_pipeline
    complete: bool = True
    rate_per_s: float | None = None

    def found(self, points: Sequence[Point]) -> Iterator[PointRun]:
        """Measure the points in order."""
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
