"""The figures of a run; docs/reference/measures.md has the formulas and other tools' definitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.statistics import percentile, present, suffices

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
MAX_TOKENS = 100_000
"""A server could report any number in a few bytes."""


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """One answered request, in seconds; None if unknown. *Response* times start when it was due, *service*
    times when it was sent."""

    schedule_delay_s: float
    ttft_s: float | None
    service_ttft_s: float | None
    tpot_s: float | None
    itl_mean_s: float | None
    e2el_s: float
    service_e2el_s: float
    token_gaps_s: tuple[float, ...]
    chunk_gaps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """`std`: population standard deviation."""

    count: int
    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class RequestSlo:
    """Objectives in seconds from when the request was due; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a run; rates are over `duration_s`.

    `distributions`: by name, absent without samples. Token rates are None if an answer has no count.
    `goodput`: share of all offered requests that met the objectives.
    """

    offered: int
    answered: int
    failed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    goodput: float | None
    good_requests_per_s: float | None
    distributions: Mapping[str, Distribution]


def request_figures(record: RequestRecord) -> RequestFigures | None:
    if not record.answered or record.sent_s is None:
        return None
    at_s = [chunk.at_s for chunk in record.chunks]
    first_s = at_s[0] if at_s else None
    last_s = at_s[-1] if at_s else record.ended_s
    tpot_s = itl_mean_s = None
    n = output_tokens(record)
    if first_s is not None and n is not None and n > 1:
        tpot_s = (last_s - first_s) / (n - 1)
        later = n - (record.chunks[0].tokens or 1)
        itl_mean_s = (last_s - first_s) / later if later > 0 else None
    return RequestFigures(
        schedule_delay_s=record.sent_s - record.due_s,
        ttft_s=None if first_s is None else first_s - record.due_s,
        service_ttft_s=None if first_s is None else first_s - record.sent_s,
        tpot_s=tpot_s,
        itl_mean_s=itl_mean_s,
        e2el_s=last_s - record.due_s,
        service_e2el_s=last_s - record.sent_s,
        token_gaps_s=_gaps(token_times(record)),
        chunk_gaps_s=_gaps(at_s),
    )


def output_tokens(record: RequestRecord) -> int | None:
    """By the server's usage, else the sum of the chunks' counts, else None."""
    if record.output_tokens is not None:
        return record.output_tokens
    return _chunk_tokens(record)


def prompt_tokens(record: RequestRecord) -> int | None:
    return record.asked_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens


def token_times(record: RequestRecord) -> list[float]:
    """Arrival of each token's chunk; empty if tokens per chunk are unknown or too many."""
    reported = _chunk_tokens(record)
    if reported is not None and reported > MAX_TOKENS:
        return []
    if reported is not None:
        return [chunk.at_s for chunk in record.chunks for _ in range(chunk.tokens or 0)]
    if record.output_tokens == len(record.chunks):
        return [chunk.at_s for chunk in record.chunks]
    return []


def is_good(record: RequestRecord, slo: RequestSlo) -> bool:
    figures = request_figures(record)
    return figures is not None and _keeps(figures, output_tokens(record), slo)


def run_figures(run: LoadRun, slo: RequestSlo | None = None) -> RunFigures:
    pairs = [(record, request_figures(record)) for record in run.records]
    answered = [record for record, each in pairs if each is not None]
    figures = [each for _, each in pairs if each is not None]
    outputs = [output_tokens(record) for record in answered]
    prompts = [prompt_tokens(record) for record in answered]
    good = None
    if slo is not None and slo != RequestSlo():
        good = sum(_keeps(each, n, slo) for each, n in zip(figures, outputs, strict=True))
    samples: dict[str, Iterable[float | None]] = {
        "schedule_delay": [
            record.sent_s - record.due_s for record in run.records if record.sent_s is not None
        ],
        "ttft": [each.ttft_s for each in figures],
        "service_ttft": [each.service_ttft_s for each in figures],
        "tpot": [each.tpot_s for each in figures],
        "itl_mean": [each.itl_mean_s for each in figures],
        "token_gap": [gap_s for each in figures for gap_s in each.token_gaps_s],
        "chunk_gap": [gap_s for each in figures for gap_s in each.chunk_gaps_s],
        "longest_gap": [max(each.chunk_gaps_s, default=None) for each in figures],
        "e2el": [each.e2el_s for each in figures],
        "service_e2el": [each.service_e2el_s for each in figures],
        "prompt_tokens": prompts,
        "output_tokens": outputs,
    }
    found = {name: distribution(present(values)) for name, values in samples.items()}
    return RunFigures(
        offered=len(run.records),
        answered=len(answered),
        failed=len(run.records) - len(answered),
        duration_s=run.duration_s,
        requests_per_s=_per_second(len(answered), run),
        output_tokens_per_s=_tokens_per_s(outputs, run),
        total_tokens_per_s=_tokens_per_s([*prompts, *outputs], run),
        goodput=good / len(run.records) if good is not None and run.records else None,
        good_requests_per_s=None if good is None else _per_second(good, run),
        distributions={name: each for name, each in found.items() if each is not None},
    )


def distribution(values: Sequence[float]) -> Distribution | None:
    """None without samples."""
    if not values:
        return None
    ordered, count = sorted(values), len(values)
    low, high = ordered[0], ordered[-1]
    # Rounding must not move the mean out of the samples' range.
    mean = min(max(math.fsum(ordered) / count, low), high)
    return Distribution(
        count=count,
        mean=mean,
        std=math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / count),
        minimum=low,
        maximum=high,
        percentiles={
            percent: percentile(ordered, percent) for percent in PERCENTILES if suffices(count, percent)
        },
    )


def _keeps(figures: RequestFigures, n: int | None, slo: RequestSlo) -> bool:
    tpot_s = 0.0 if n is not None and n <= 1 else figures.tpot_s
    felt = ((slo.ttft_s, figures.ttft_s), (slo.tpot_s, tpot_s), (slo.e2el_s, figures.e2el_s))
    return all(bound_s is None or (felt_s is not None and felt_s <= bound_s) for bound_s, felt_s in felt)


def _chunk_tokens(record: RequestRecord) -> int | None:
    total = 0
    for chunk in record.chunks:
        if chunk.tokens is None:
            return None
        total += chunk.tokens
    return total if record.chunks else None


def _gaps(times_s: Sequence[float]) -> tuple[float, ...]:
    return tuple(after - before for before, after in pairwise(times_s))


def _tokens_per_s(counts: Sequence[int | None], run: LoadRun) -> float | None:
    if any(count is None for count in counts):
        return None
    return _per_second(sum(filter(None, counts)), run)


def _per_second(count: int, run: LoadRun) -> float:
    return count / run.duration_s if run.duration_s > 0 else 0.0
