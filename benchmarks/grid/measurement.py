"""Measures the cells of a grid, engine by engine; a failure is recorded, and the others continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.batching.measurement import doubts
from benchmarks.grid.cells import (
    EXACT,
    CellSpec,
    GridOptions,
    Parallelism,
    burst_load,
    cell_load,
    warm_up_load,
)
from benchmarks.grid.engines import RunningEngine
from benchmarks.grid.streamed import (
    Session,
    Streamed,
    first_line,
    open_session,
    stream_cell,
    stream_each,
)
from forebay.bench.client import measure
from forebay.bench.load.schedules import RequestLoad
from forebay.bench.records import LoadRun
from forebay.bench.report.document import MeasuredRun, measured_run
from forebay.bench.resources import GpuResources, ProcessResources, processor_use
from forebay.bench.sampling import Sampler, Source, engine_signals
from forebay.bench.targets.base import Target
from forebay.errors import ForebayError

TIMEOUT_S = 1800.0
SAMPLE_EVERY_S = 0.25


StartEngine = Callable[[str, Parallelism], AbstractContextManager[RunningEngine]]
OpenSession = Callable[[tuple[str, ...], str | None, GridOptions, int], AbstractContextManager[Session]]
"""Starts the pipeline in front of these engines with a number of subtasks."""


@dataclass(frozen=True, slots=True)
class Served:
    """The engine alone, under one load."""

    measured: MeasuredRun
    others_cores: float | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        return doubts(self.measured, self.others_cores)


@dataclass(frozen=True, slots=True)
class Capacity:
    """An engine's figures with all requests at once, by the tail of their answers."""

    model: str
    parallelism: Parallelism
    bursts: Mapping[str, Served] = field(default_factory=dict)
    error: str | None = None

    @property
    def requests_per_s(self) -> float | None:
        """With exact lengths if measured, else with the first tail."""
        best = self.bursts.get(EXACT) or next(iter(self.bursts.values()), None)
        return best.measured.figures.requests_per_s if best is not None else None


@dataclass(frozen=True, slots=True)
class Cell:
    spec: CellSpec
    rate_per_s: float
    serving: Served | None = None
    stream: Streamed | None = None
    error: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        found = [] if self.serving is None else [f"engine: {one}" for one in self.serving.reasons]
        if self.stream is not None:
            found += [f"stream: {one}" for one in self.stream.reasons]
        return tuple(found if self.error is None else [*found, self.error])


Found = Capacity | Cell


@dataclass(slots=True)
class Measurement:
    options: GridOptions
    start: StartEngine
    note: Callable[[str], None] = print
    local: bool = True
    complete: bool = True
    session: OpenSession = open_session

    def found(self) -> Iterator[Found]:
        """For each engine its capacity, then its cells, as they are measured."""
        for model, parallelism in self.options.engines():
            if not self.complete:
                return
            try:
                with self.start(model, parallelism) as engine:
                    yield from self._of_engine(model, parallelism, engine)
            except ForebayError as error:
                yield Capacity(model, parallelism, error=first_line(error))

    def _of_engine(self, model: str, parallelism: Parallelism, engine: RunningEngine) -> Iterator[Found]:
        options = self.options
        self.complete = measure(engine.target(), warm_up_load(options)).complete
        bursts: dict[str, Served] = {}
        for tail in options.tails:
            if self.complete:
                bursts[tail] = self._serve(engine, burst_load(options, tail))
        if not self.complete:
            return
        capacity = Capacity(model, parallelism, bursts)
        yield capacity
        rate_per_s = round(options.rate_per_s or (capacity.requests_per_s or 0.0) * options.load, 4)
        cells = {
            spec: Cell(spec, rate_per_s, error=None if rate_per_s else "the engine answered nothing")
            for spec in options.cells(model, parallelism)
        }
        if not rate_per_s:
            yield from cells.values()
            return
        try:
            self._serve_all(engine, cells)
            yield from self._stream_all(engine, cells)
        except KeyboardInterrupt:
            self.complete = False
        # Cells without a stream: not requested, or interrupted.
        yield from (cell for cell in cells.values() if cell.serving is not None or cell.error is not None)

    def _serve_all(self, engine: RunningEngine, cells: dict[CellSpec, Cell]) -> None:
        seen: dict[CellSpec, Cell] = {}
        for spec, cell in cells.items() if self.options.serving else ():
            if not self.complete:
                return
            alike = replace(spec, subtasks=1)
            if alike not in seen:
                seen[alike] = self._served(engine, cell)
            cells[spec] = replace(seen[alike], spec=spec)

    def _served(self, engine: RunningEngine, cell: Cell) -> Cell:
        try:
            load = cell_load(self.options, cell.spec, cell.rate_per_s)
            return replace(cell, serving=self._serve(engine, load))
        except ForebayError as error:
            return replace(cell, error=f"engine: {first_line(error)}")

    def _stream_all(self, engine: RunningEngine, cells: dict[CellSpec, Cell]) -> Iterator[Cell]:
        for subtasks in self.options.subtasks if self.options.stream else ():
            if not self.complete:
                return
            found = stream_each(
                [spec for spec in cells if spec.subtasks == subtasks],
                partial(self.session, engine.urls, engine.model, self.options, subtasks),
                lambda session, spec: stream_cell(session, self.options, spec, cells[spec].rate_per_s),
            )
            for spec, stream, failure in found:
                cell = cells.pop(spec)
                self.complete = stream is None or stream.run.complete or failure is not None
                error = f"stream: {failure}" if stream is None else cell.error or failure
                yield replace(cell, stream=stream, error=error)

    def _serve(self, engine: RunningEngine, load: RequestLoad) -> Served:
        sources: list[Source] = [*engine_signals(engine.urls), GpuResources()]
        if engine.processes:
            sources.append(ProcessResources(engine.processes))
        target, before = engine.target(), processor_use()
        with Sampler(sources, every_s=SAMPLE_EVERY_S) as sampler:
            run = measure(target, load, timeout_s=TIMEOUT_S)
        others = before.others_cores(processor_use()) if self.local else None
        self.complete = self.complete and run.complete
        return Served(measured_run(_with(run, sampler, target, engine)), others)


def _with(run: LoadRun, sampler: Sampler, target: Target, engine: RunningEngine) -> LoadRun:
    seen = {"target": target.name, "model": engine.model}
    return replace(run, samples=sampler.samples(run.began_at), provenance=seen)
