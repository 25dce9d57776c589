"""The figures of a run, each defined once; docs/reference/metrics.md has the formulas and who differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.bench.records import LoadRun, RequestRecord


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What one answered request felt, in seconds.

    *Response* times count from when it was due, *service* times from when it was sent. None where it cannot
    be told: no content, one token only, or no count of tokens.
    """

    schedule_delay_s: float
    ttft_s: float | None
    service_ttft_s: float | None
    tpot_s: float | None
    e2el_s: float
    service_e2el_s: float
    token_gaps_s: tuple[float, ...]
    chunk_gaps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """`percentiles`: by their number (50, 90, 95, 99), only those that so many samples can give."""

    count: int
    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Slo:
    """What an answer has to keep, in seconds from when it was due; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunFigures:
    """`distributions`: by name: schedule_delay, ttft, service_ttft, tpot, itl_mean, token_gap, chunk_gap,
    e2el, service_e2el (seconds), prompt_tokens, output_tokens. `goodput`: share of all offered requests that
    kept the objectives, failures counted against it; None without objectives."""

    offered: int
    answered: int
    failed: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput: float | None
    good_requests_per_s: float | None
    distributions: Mapping[str, Distribution]


def request_figures(record: RequestRecord) -> RequestFigures | None:
    """The figures of one request; None if it was not answered."""
    raise NotImplementedError


def run_figures(run: LoadRun, slo: Slo | None = None) -> RunFigures:
    """The figures of all requests of a run."""
    raise NotImplementedError
