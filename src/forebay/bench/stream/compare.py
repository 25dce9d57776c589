"""The figures of measured pipelines that are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from forebay.bench.compare import ComparedFigure, FigureKind, LoadComparison
from forebay.bench.metrics import Distribution
from forebay.bench.report.figures_table import flattened, rate_per_s
from forebay.bench.report.figures_table import kind as kind_of
from forebay.bench.statistics import present
from forebay.bench.stream.document import MeasuredStream
from forebay.bench.stream.events import Until
from forebay.bench.stream.figures import UNTIL, is_good, latency_s
from forebay.bench.stream.records import EventRecord

LOAD = ("schedule", "events", "data")
"""Keys of a request that are the load."""


def load_of(measured: MeasuredStream) -> dict[str, Any]:
    asked = measured.run.asked
    return {**{name: asked.get(name) for name in LOAD}, "kills": measured.run.planned_kills}


def load_name(measured: MeasuredStream) -> str:
    rate, kills = rate_per_s(measured.run.asked), measured.run.planned_kills
    named = kind_of(measured.run.asked, "schedule") if rate is None else f"{rate:.4g} events/s"
    return f"{named}, {kills} kills" if kills else named


def stream_loads(found: Sequence[MeasuredStream]) -> list[tuple[str, list[MeasuredStream]]]:
    """Runs by load, repeats together, in the order of their first runs."""
    by_load: dict[str, list[MeasuredStream]] = {}
    for measured in found:
        by_load.setdefault(repr(sorted(flattened(load_of(measured)))), []).append(measured)
    return [(load_name(runs[0]), runs) for runs in by_load.values()]


def _settings(measured: MeasuredStream) -> Mapping[str, Any]:
    return {"pipeline": measured.run.asked.get("pipeline", {}), **measured.run.provenance}


def _unlike(before: Sequence[MeasuredStream], after: Sequence[MeasuredStream]) -> Iterator[str]:
    nouns = [sorted({one.run.noun for one in runs}) for runs in (before, after)]
    if nouns[0] != nouns[1]:
        yield f"what is measured: {nouns[0][0]}s in A, {nouns[1][0]}s in B"


def _by_due(measured: MeasuredStream) -> list[EventRecord]:
    return sorted(measured.run.followed, key=lambda each: (each.due_s, each.index))


def _statistic(found: Distribution | None, percent: float | None) -> float | None:
    if found is None:
        return None
    return found.mean if percent is None else found.percentiles.get(percent)


def _times(
    name: str,
    of_run: Callable[[MeasuredStream], Distribution | None],
    samples: Callable[[MeasuredStream], Sequence[float]],
) -> Iterator[ComparedFigure[MeasuredStream]]:
    for percent in (None, 50, 90, 99):
        words = f"{name} mean" if percent is None else f"{name} p{percent}"

        def statistic(measured: MeasuredStream, percent: float | None) -> float | None:
            return _statistic(of_run(measured), percent)

        yield ComparedFigure(words, "s", False, partial(statistic, percent=percent), samples, percent)


def latencies(until: Until, measured: MeasuredStream) -> list[float]:
    """From each event's own time, in the order of these times."""
    return present(latency_s(event, until) for event in _by_due(measured))


def _latency(until: Until) -> Iterator[ComparedFigure[MeasuredStream]]:
    return _times(f"to {until}", lambda one: one.figures.latency.get(until), partial(latencies, until))


def _good(measured: MeasuredStream) -> list[float]:
    slo = measured.slo
    return [] if slo is None else [float(is_good(event, slo)) for event in _by_due(measured)]


STREAMS: FigureKind[MeasuredStream] = FigureKind(
    stream_loads,
    load_of,
    load_name,
    # A pipeline has one target, wherever its engine is.
    lambda one: "",
    _settings,
    (
        ComparedFigure("answered/s", "/s", True, lambda one: one.figures.answered_per_s),
        ComparedFigure("committed/s", "/s", True, lambda one: one.figures.committed_per_s),
        *(figure for until in UNTIL for figure in _latency(until)),
        ComparedFigure("goodput", "share", True, lambda one: one.figures.goodput, _good),
        ComparedFigure("good/s", "/s", True, lambda one: one.figures.good_per_s),
        *_times(
            "checkpoint",
            lambda one: one.figures.checkpoint.get("duration_s"),
            lambda one: [each.duration_s for each in one.run.checkpoints if each.completed],
        ),
        ComparedFigure("lost", "", False, lambda one: float(one.figures.lost)),
        ComparedFigure("doubled", "", False, lambda one: float(one.figures.doubled)),
        ComparedFigure("dead letters", "", False, lambda one: float(one.figures.failed)),
    ),
    _unlike,
)


def all_latencies(load: LoadComparison[MeasuredStream]) -> Iterator[tuple[str, list[float], list[float]]]:
    for until in UNTIL:
        both = [[s for one in runs for s in latencies(until, one)] for runs in (load.before, load.after)]
        yield f"event time to {until}", both[0], both[1]
