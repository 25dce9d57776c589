"""Results of a simulation: the SLO, figures, and a picture."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from forebay.pages.charts import Line, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import SECONDS
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.replica import SimRequest, SimulatedReplica


@dataclass(frozen=True, slots=True)
class Slo:
    """First token within `ttft_s` plus `ttft_ratio` times the prompt's time on an idle replica without a
    cache; then a token every `tpot_s` on average.

    With a fixed limit, long prompts, which take many seconds alone, would always miss it, and short ones
    never. A second goes unnoticed in a conversation; people read about five tokens a second.
    """

    ttft_s: float = 1.0
    ttft_ratio: float = 5.0
    tpot_s: float = 0.2

    def due_s(self, arrived_s: float, prompt_tokens: int, model: EngineModel) -> float:
        return arrived_s + self.ttft_s + self.ttft_ratio * model.alone_s(prompt_tokens)

    def met(self, sequence: SimRequest) -> bool:
        """Whether a request met the SLO; one that was given up did not."""
        if not sequence.first_token_s <= sequence.demand.due_s:
            return False
        took_s = sequence.finished_s - sequence.first_token_s
        return took_s <= self.tpot_s * max(1, sequence.output_tokens - 1)


QUANTILES = 101


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Times in seconds, of answered requests.

    `goodput` is the share of all offered requests that met the SLO, `hit_share` that of prompt tokens that
    were cached, `imbalance` the busiest replica's working time over the mean. `ttft_s` and `latency_s` are
    the 0, 1, …, 100 % quantiles.
    """

    requests: int
    answered: int
    requests_per_s: float
    goodput: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    latency_mean_s: float
    latency_p99_s: float
    hit_share: float
    imbalance: float
    preemptions: int
    ttft_s: tuple[float, ...] = ()
    latency_s: tuple[float, ...] = ()


def figures(requests: Many[SimRequest], replicas: Many[SimulatedReplica], slo: Slo) -> Figures:
    done = [request for request in requests if request.finished_s == request.finished_s]
    arrived = np.array([request.arrived_s for request in done])
    first = np.array([request.first_token_s for request in done])
    finished = np.array([request.finished_s for request in done])
    tokens = np.array([request.output_tokens for request in done], dtype=float)
    ttft, latency = first - arrived, finished - arrived
    tpot = ((finished - first) / np.maximum(tokens - 1, 1))[tokens > 1]
    prompts = sum(request.prompt_tokens for request in done)
    busy = [replica.busy_s for replica in replicas]
    span_s = (float(finished.max()) if done else 0.0) - (requests[0].arrived_s if requests else 0.0)
    return Figures(
        requests=len(requests),
        answered=len(done),
        requests_per_s=len(done) / max(span_s, 1e-9),
        goodput=sum(map(slo.met, requests)) / max(len(requests), 1),
        ttft_mean_s=_mean(ttft),
        ttft_p50_s=_quantile(ttft, 0.5),
        ttft_p99_s=_quantile(ttft, 0.99),
        tpot_mean_s=_mean(tpot),
        tpot_p99_s=_quantile(tpot, 0.99),
        latency_mean_s=_mean(latency),
        latency_p99_s=_quantile(latency, 0.99),
        hit_share=sum(request.hit_tokens for request in done) / max(prompts, 1),
        imbalance=max(busy) * len(busy) / sum(busy) if any(busy) else 1.0,
        preemptions=sum(replica.preemptions for replica in replicas),
        ttft_s=_quantiles(ttft),
        latency_s=_quantiles(latency),
    )


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(values.mean()) if len(values) else 0.0


def _quantile(values: np.ndarray[tuple[int], np.dtype[np.float64]], q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else 0.0


def _quantiles(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, ...]:
    if not len(values):
        return ()
    return tuple(round(float(q), 6) for q in np.quantile(values, np.linspace(0, 1, QUANTILES)))


def runs_picture(lines: dict[str, tuple[tuple[float, ...], tuple[float, ...]]], title: str) -> Picture:
    """Cumulative distributions of TTFT and latency: by policy, the 0 … 100 % quantiles of both."""
    panels = []
    for at, name in enumerate(("time to first token", "latency")):
        drawn = []
        for (policy, both), colour in zip(lines.items(), cycle(COLOURS)):
            last = max(len(both[at]) - 1, 1)
            points = [(max(value_s, 1e-3), index / last) for index, value_s in enumerate(both[at])]
            drawn.append(Line(policy, points, colour))
        what = f"Share of requests by {name}"
        panels.append(share_figure(what, drawn, label=what, x_name=name, x_unit=SECONDS, log_x=True))
    return Picture(title, panels)
