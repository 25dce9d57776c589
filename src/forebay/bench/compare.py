"""Differences between two benchmarks with intervals, and whether the two are comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Generic, TypeVar

from forebay.bench.metrics import RequestFigures, RequestSlo, is_good, request_figures
from forebay.bench.records import RequestRecord
from forebay.bench.report.document import MeasuredRun, Report
from forebay.bench.report.figures_table import flattened, load_name, load_of, loads, target_of
from forebay.bench.statistics import bootstrap_difference, difference_interval, present
from forebay.bench.stream.document import MeasuredStream
from forebay.errors import SettingError

WELCH = "Welch's interval over repeats"
BOOTSTRAP = "block bootstrap over requests"
SAME_NEEDED = ("model", "tokenizer")


Run = TypeVar("Run", bound=MeasuredRun | MeasuredStream)


@dataclass(frozen=True, slots=True)
class Difference:
    """`after` − `before` of one figure; `unit`: s, /s or share. `low`, `high`: its 95 % interval, or None if
    unknown."""

    name: str
    unit: str
    higher_is_better: bool
    before: float
    after: float
    low: float | None = None
    high: float | None = None
    method: str | None = None

    @property
    def relative(self) -> float | None:
        return (self.after - self.before) / abs(self.before) if self.before else None

    @property
    def beyond_noise(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low > 0 or self.high < 0

    @property
    def better(self) -> bool | None:
        """None if the two do not differ beyond noise."""
        return (self.after > self.before) == self.higher_is_better if self.beyond_noise else None


@dataclass(frozen=True, slots=True)
class LoadComparison(Generic[Run]):
    name: str
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Generic[Run]):
    loads: tuple[LoadComparison[Run], ...]
    obstacles: tuple[str, ...]
    changes: tuple[tuple[str, str, str], ...]


def compare(before: Report, after: Report, *, anyway: bool = False) -> Comparison[MeasuredRun]:
    return compare_runs(before.runs, after.runs, SERVERS, anyway=anyway)


def compare_runs(
    before: Sequence[Run], after: Sequence[Run], kind: FigureKind[Run], *, anyway: bool = False
) -> Comparison[Run]:
    """Compare runs of one kind load by load; blocks for seconds.

    Raises `SettingError` with all reasons against it; with `anyway`, only if the two share no load.
    """
    pairs, obstacles = _pairs(kind, before, after)
    obstacles += _other_settings(before, after)
    obstacles += kind.unlike(before, after)
    obstacles += [*_bad_runs(kind, before, "A"), *_bad_runs(kind, after, "B")]
    if obstacles and not (anyway and pairs):
        listed = "".join(f"\n- {reason}" for reason in obstacles)
        fix = "--anyway compares them all the same" if pairs else "they share no load"
        raise SettingError(f"these two cannot be compared ({fix}):{listed}")
    return Comparison(
        loads=tuple(
            LoadComparison(name, tuple(a), tuple(b), tuple(differences(a, b, kind.figures)))
            for name, a, b in pairs
        ),
        obstacles=tuple(obstacles),
        changes=tuple(settings_unlike(kind.settings(before[0]), kind.settings(after[0]))),
    )


def comparison_document(found: Comparison[Run]) -> dict[str, Any]:
    return {
        "obstacles": list(found.obstacles),
        "loads": [
            {
                "load": load.name,
                "runs": [len(load.before), len(load.after)],
                "differences": [_difference_document(one) for one in load.differences],
            }
            for load in found.loads
        ],
        "changes": [{"setting": name, "before": old, "after": new} for name, old, new in found.changes],
    }


def _difference_document(one: Difference) -> dict[str, Any]:
    derived = {"relative": one.relative, "beyond_noise": one.beyond_noise, "better": one.better}
    return {**asdict(one), **derived}


def differences(
    before: Sequence[Run], after: Sequence[Run], figures: Sequence[ComparedFigure[Run]]
) -> Iterator[Difference]:
    """Intervals are over repeats if both have two or more, else over requests."""
    for figure in figures:
        a, b = present(map(figure.of_run, before)), present(map(figure.of_run, after))
        if len(a) == len(before) and len(b) == len(after):
            low, high, method = _interval(figure, before, after, a, b)
            unit, higher = figure.unit, figure.higher_is_better
            yield Difference(figure.name, unit, higher, fmean(a), fmean(b), low, high, method)


def _interval(
    figure: ComparedFigure[Run],
    before: Sequence[Run],
    after: Sequence[Run],
    a: Sequence[float],
    b: Sequence[float],
) -> tuple[float | None, float | None, str | None]:
    interval = difference_interval(a, b)
    if interval is not None:
        return interval.low, interval.high, WELCH
    if figure.samples is None:
        return None, None, None
    samples = [[value for one in runs for value in figure.samples(one)] for runs in (before, after)]
    if not all(samples):
        return None, None, None
    return *bootstrap_difference(samples[0], samples[1], figure.percent), BOOTSTRAP


@dataclass(frozen=True, slots=True)
class ComparedFigure(Generic[Run]):
    name: str
    unit: str
    higher_is_better: bool
    of_run: Callable[[Run], float | None]
    samples: Callable[[Run], Sequence[float]] | None = None
    percent: float | None = None


@dataclass(frozen=True, slots=True)
class FigureKind(Generic[Run]):
    """How to compare one kind of runs. `load`: what runs of one load share; `unlike`: reasons against
    comparing two."""

    loads: Callable[[Sequence[Run]], Sequence[tuple[str, Sequence[Run]]]]
    load: Callable[[Run], Mapping[str, Any]]
    name: Callable[[Run], str]
    target: Callable[[Run], str]
    settings: Callable[[Run], Mapping[str, Any]]
    figures: Sequence[ComparedFigure[Run]]
    unlike: Callable[[Sequence[Run], Sequence[Run]], Iterable[str]] = field(default=lambda a, b: ())


def _times(
    name: str, key: str, of_request: Callable[[RequestFigures], float | None]
) -> Iterator[ComparedFigure[MeasuredRun]]:
    def samples(measured: MeasuredRun) -> list[float]:
        figures = map(request_figures, _by_due(measured))
        return present(of_request(each) for each in figures if each is not None)

    def of_run(measured: MeasuredRun, percent: float | None) -> float | None:
        found = measured.figures.distributions.get(key)
        return None if found is None else found.mean if percent is None else found.percentiles.get(percent)

    for percent in (None, 50, 90, 99):
        words = f"{name} mean" if percent is None else f"{name} p{percent}"
        yield ComparedFigure(words, "s", False, partial(of_run, percent=percent), samples, percent)


def _good(measured: MeasuredRun) -> list[float]:
    slo: RequestSlo | None = measured.slo
    return [] if slo is None else [float(is_good(record, slo)) for record in _by_due(measured)]


FIGURES: tuple[ComparedFigure[MeasuredRun], ...] = (
    ComparedFigure("requests/s", "/s", True, lambda one: one.figures.requests_per_s),
    ComparedFigure("output tokens/s", "/s", True, lambda one: one.figures.output_tokens_per_s),
    *_times("TTFT", "ttft", lambda one: one.ttft_s),
    *_times("TPOT", "tpot", lambda one: one.tpot_s),
    *_times("longest gap", "longest_gap", lambda one: max(one.chunk_gaps_s, default=None)),
    *_times("E2EL", "e2el", lambda one: one.e2el_s),
    ComparedFigure(
        "goodput",
        "share",
        True,
        lambda one: one.figures.goodput,
        _good,
    ),
)
SERVERS: FigureKind[MeasuredRun] = FigureKind(
    loads,
    lambda one: load_of(one.run.asked),
    lambda one: load_name(one.run.asked),
    lambda one: target_of(one.run.asked),
    lambda one: one.run.provenance,
    FIGURES,
)


def _pairs(
    kind: FigureKind[Run], all_before: Sequence[Run], all_after: Sequence[Run]
) -> tuple[list[tuple[str, Sequence[Run], Sequence[Run]]], list[str]]:
    before, after = kind.loads(all_before), kind.loads(all_after)
    several = any(len({kind.target(runs[0]) for _, runs in each}) > 1 for each in (before, after))

    def key(runs: Sequence[Run]) -> str:
        # With one target each, the addresses may differ; with several, they must match.
        target = kind.target(runs[0]) if several else None
        return repr((target, sorted(flattened(kind.load(runs[0])))))

    others = {key(runs): runs for _, runs in after}
    pairs = [(name, runs, others.pop(key(runs))) for name, runs in before if key(runs) in others]
    paired = {key(runs) for _, runs, _ in pairs}
    if not pairs and len(before) == len(after) == 1:
        (name, a), (other, b) = before[0], after[0]
        lines = [
            f"{setting}: {old} in A, {new} in B"
            for setting, old, new in settings_unlike(kind.load(a[0]), kind.load(b[0]))
        ]
        return [(name if name == other else f"{name}, {other}", a, b)], lines
    alone = [f"{name}: only in A" for name, runs in before if key(runs) not in paired]
    left = {key(runs) for runs in others.values()}
    return pairs, alone + [f"{name}: only in B" for name, runs in after if key(runs) in left]


def _other_settings(before: Sequence[Run], after: Sequence[Run]) -> Iterator[str]:
    for setting in SAME_NEEDED:
        found = [sorted({str(one.run.provenance.get(setting)) for one in runs}) for runs in (before, after)]
        if found[0] != found[1]:
            yield f"{setting}: {', '.join(found[0])} in A, {', '.join(found[1])} in B"
    objectives = [{one.slo for one in runs} for runs in (before, after)]
    if None not in (objectives[0] | objectives[1]) and objectives[0] != objectives[1]:
        yield "objectives: others in A than in B"


def _bad_runs(kind: FigureKind[Run], runs: Sequence[Run], where: str) -> Iterator[str]:
    for measured in runs:
        name = kind.name(measured)
        if measured.verdict is not None and not measured.verdict.valid:
            yield f"{name}, {where}: INVALID: {'; '.join(measured.verdict.reasons)}"
        if not measured.run.complete:
            yield f"{name}, {where}: interrupted"


def settings_unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    a, b = dict(flattened(before)), dict(flattened(after))
    for setting in {**a, **b}:
        old, new = a.get(setting, "–"), b.get(setting, "–")
        if old != new:
            yield setting, old, new


def _by_due(measured: MeasuredRun) -> list[RequestRecord]:
    return sorted(measured.run.records, key=lambda record: (record.due_s, record.index))
