"""Names of loads, and figures of runs as rows for a page and a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from forebay.bench.metrics import Distribution, RunFigures
from forebay.bench.report.curves import percentages
from forebay.bench.report.document import MeasuredRun
from forebay.bench.statistics import mean_interval
from forebay.pages.units import MILLISECONDS, NUMBER, Unit, shown, time_unit

MAX_KEYS = 3
CHANGES_IN_REPEATS = ("seed", "nonce", "target")


def rate_per_s(asked: Mapping[str, Any]) -> float | None:
    """The mean rate of an open loop; None if there is no single one."""
    return _number(asked, "rate_per_s")


def concurrency(asked: Mapping[str, Any]) -> int | None:
    """None for an open loop."""
    found = _number(asked, "concurrency")
    return None if found is None else int(found)


def burstiness(asked: Mapping[str, Any]) -> float:
    """vLLM's definition: 1 for a Poisson process."""
    return _number(asked, "burstiness") or 1.0


def kind(asked: Mapping[str, Any], of: str) -> str:
    part = asked.get(of)
    named = part.get("kind") if isinstance(part, Mapping) else part
    return "unknown" if named is None else str(named).replace("_", " ")


def load_name(asked: Mapping[str, Any]) -> str:
    rate, in_flight = rate_per_s(asked), concurrency(asked)
    if rate is not None:
        return f"{rate:.4g} requests/s"
    return kind(asked, "schedule") if in_flight is None else f"concurrency {in_flight}"


def loads(runs: Sequence[MeasuredRun]) -> list[tuple[str, list[MeasuredRun]]]:
    """Runs by target and load, repeats together, in the order of their first runs."""
    several = len({target_of(measured.run.asked) for measured in runs}) > 1
    found: dict[bytes, tuple[str, list[MeasuredRun]]] = {}
    for measured in runs:
        asked, target = measured.run.asked, target_of(measured.run.asked)
        name = f"{load_name(asked)}, {target}" if several else load_name(asked)
        key = orjson.dumps([target, load_of(asked)], option=orjson.OPT_SORT_KEYS, default=str)
        found.setdefault(key, (name, []))[1].append(measured)
    return _distinguished(list(found.values()))


def _distinguished(
    named: list[tuple[str, list[MeasuredRun]]],
) -> list[tuple[str, list[MeasuredRun]]]:
    alike: dict[str, list[dict[str, str]]] = {}
    for name, own in named:
        alike.setdefault(name, []).append(dict(flattened(load_of(own[0].run.asked))))
    differ = {
        name: [key for key in group[0] if len({one.get(key) for one in group}) > 1][:MAX_KEYS]
        for name, group in alike.items()
    }
    apart = []
    for name, own in named:
        settings = dict(flattened(load_of(own[0].run.asked)))
        # `output limit` for `workload output limit`: the last two words are enough.
        lines = [f"{' '.join(key.split()[-2:])} {settings.get(key, '–')}" for key in differ[name]]
        apart.append((", ".join([name, *lines]), own))
    return apart


def load_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The requested load without its target: equal for repeats."""
    return {name: value for name, value in asked.items() if name not in CHANGES_IN_REPEATS}


def target_of(asked: Mapping[str, Any]) -> str:
    return str(asked.get("target", ""))


def flattened(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows: `versions vllm`, `0.32.0`."""
    for name, value in values.items():
        words = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from flattened(value, f"{words} ")
        elif isinstance(value, list | tuple):
            yield words, ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield words, str(value)


def _number(asked: Mapping[str, Any], name: str) -> float | None:
    schedule = asked.get("schedule")
    found = schedule.get(name) if isinstance(schedule, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


HEADER = ("", "count", "mean", "std", "min", "p50", "p90", "p95", "p99", "max")
NARROW = (0, 2, 5, 6, 7, 8, 9)
FIGURES = (
    ("ttft", "TTFT, response", True),
    ("service_ttft", "TTFT, service", True),
    ("tpot", "TPOT", True),
    ("itl_mean", "ITL, mean per request", True),
    ("token_gap", "gap between tokens", True),
    ("chunk_gap", "gap between chunks", True),
    ("longest_gap", "longest gap per request", True),
    ("e2el", "E2EL, response", True),
    ("service_e2el", "E2EL, service", True),
    ("schedule_delay", "schedule delay", True),
    ("prompt_tokens", "prompt", False),
    ("output_tokens", "output", False),
)


def figure_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    """A row of `HEADER` for each distribution; dashes for percentiles of too few samples."""
    for name, words, timed in FIGURES:
        found = figures.distributions.get(name)
        if found is not None:
            unit = MILLISECONDS if timed else Unit("tokens")
            yield f"{words}, {unit.name}", f"{found.count:,}", *_values(found, Unit("", unit.scale))


def _values(found: Distribution, unit: Unit) -> Iterator[str]:
    percentiles = (found.percentiles.get(number) for number in (50, 90, 95, 99))
    for value in (found.mean, found.std, found.minimum, *percentiles, found.maximum):
        yield or_dash(value, unit)


def headline(figures: RunFigures) -> Iterator[tuple[str, str]]:
    yield "requests answered", f"{figures.answered:,} of {figures.offered:,}"
    yield "requests/s answered", shown(figures.requests_per_s)
    yield "output tokens/s", or_dash(figures.output_tokens_per_s)
    for name, words in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL")):
        found = figures.distributions.get(name)
        if found is not None:
            unit = time_unit(found.percentiles.get(50, found.mean))
            tail = max(percentages(found.count))
            beyond = f", p{tail:g} {shown(found.percentiles[tail], unit)}" if tail > 50 else ""
            yield f"{words} median{beyond}", shown(found.percentiles[50], unit)
    if figures.goodput is not None:
        yield "goodput: share within the objectives", f"{figures.goodput:.1%}"


def or_dash(value: float | None, unit: Unit | None = None) -> str:
    return "–" if value is None else shown(value, unit)


LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2EL"))
PLUS_MINUS = "± is half of the 95 % confidence interval of the mean over repeats (Student's t)."
Loads = Sequence[tuple[str, Sequence[MeasuredRun]]]


def loads_table(named: Loads) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A header, and a row per load. Figures that no load has are left out."""
    columns: list[tuple[str, list[list[float | None]], Unit]] = [
        ("requests/s", [[one.figures.requests_per_s for one in own] for _, own in named], NUMBER),
        ("output tokens/s", [[one.figures.output_tokens_per_s for one in own] for _, own in named], NUMBER),
    ]
    for name, words in LATENCIES:
        medians = [[_median(one, name) for one in own] for _, own in named]
        columns.append((f"{words} p50, {MILLISECONDS.name}", medians, Unit("", MILLISECONDS.scale)))
    goodput = [[one.figures.goodput for one in own] for _, own in named]
    columns.append(("goodput, %", goodput, Unit("", 100.0)))
    columns = [column for column in columns if any(any(v is not None for v in own) for own in column[1])]
    repeated = has_repeats(named)
    header = ("load", *(["runs"] if repeated else []), "", *(name for name, _, _ in columns), "failed")
    rows = [
        (
            load,
            *([str(len(own))] if repeated else []),
            _verdict(own),
            *(_over_repeats(values[number], unit) for _, values, unit in columns),
            f"{sum(one.figures.failed for one in own):,}",
        )
        for number, (load, own) in enumerate(named)
    ]
    return header, rows


def has_repeats(named: Loads) -> bool:
    return any(len(own) > 1 for _, own in named)


def _verdict(own: Sequence[MeasuredRun]) -> str:
    invalid = sum(one.word == "INVALID" for one in own)
    if invalid:
        return "INVALID" if invalid == len(own) else f"{invalid} INVALID"
    return "VALID" if all(one.word for one in own) else "–"


def _median(measured: MeasuredRun, name: str) -> float | None:
    found = measured.figures.distributions.get(name)
    return None if found is None else found.percentiles.get(50)


def _over_repeats(values: Sequence[float | None], unit: Unit) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    interval = mean_interval(known)
    if interval is None:
        return shown(known[0], unit)
    return f"{shown(interval.mean, unit)} ± {shown((interval.high - interval.low) / 2, unit, digits=2)}"
