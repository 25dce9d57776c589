"""Fit step times of a real engine to the times of its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from forebay.errors import SettingError
from forebay.files import read_bytes
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate.engine import EngineModel, StepTime
from forebay.planning.simulate.replica import SimRequest, SimulatedReplica, serve

Array = NDArray[np.float64]

MAX_FILE_BYTES = 256 << 20
MOMENTS = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
STARTS = (StepTime(0.01, 5e-5, 5e-8, 5e-5, 1e-9, 1e-3), StepTime(0.02, 1e-4, 1e-7, 1e-4, 1e-8, 1e-2))
FIELDS = ("step_s", "decode_s", "context_s", "prefill_s", "attention_s", "prefill_step_s")
PROBE = 0.01
LONGEST_MOVE = 0.7
"""A coefficient at most doubles or halves in one iteration."""
ITERATIONS = 40
TRIALS = 6
ENOUGH = 1e-5


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """Ordered by arrival."""

    arrived_s: Array
    first_token_s: Array
    finished_s: Array
    prompt_tokens: list[int]
    output_tokens: list[int]


@dataclass(frozen=True, slots=True)
class Calibration:
    model: EngineModel
    measured: dict[str, float]
    simulated: dict[str, float]

    @property
    def worst(self) -> float:
        return max(abs(self.simulated[name] / self.measured[name] - 1) for name in self.measured)


def read_run(path: Path) -> CalibrationRun:
    """Read JSON lines with `input_toks`, `output_toks` and the times `MOMENTS`. Raises `SettingError`.

    `arrival_time` is on another clock; the smallest time to the queue is taken as 0.
    """
    lines = read_bytes(path, MAX_FILE_BYTES, f"measured run: {path}").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            found: Any = orjson.loads(line)
            moments = [float(found[name]) for name in MOMENTS]
            tokens = [found["input_toks"], found["output_toks"]]
            if not all(map(math.isfinite, moments)) or any(type(n) is not int or n < 1 for n in tokens):
                raise ValueError
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise SettingError(
                f"measured run: {path}, line {number}: expected a JSON object with input_toks, output_toks "
                f"and {', '.join(MOMENTS)}"
            ) from None
        rows.append((*moments, *tokens))
    if len(rows) < 2:
        raise SettingError(f"measured run: {path} holds {len(rows)} requests; two at least are needed")
    rows.sort()
    arrived, queued, first, last = (np.array([row[i] for row in rows]) for i in range(4))
    offset = (queued - arrived).min() + arrived.min()
    prompts, outputs = [int(row[4]) for row in rows], [int(row[5]) for row in rows]
    return CalibrationRun(arrived - arrived.min(), first - offset, last - offset, prompts, outputs)


def simulate_run(model: EngineModel, run: CalibrationRun) -> CalibrationRun:
    replica = SimulatedReplica(model)
    requests = [
        SimRequest(at, arrived_s, RoutingRequest(prompt), output)
        for at, (arrived_s, prompt, output) in enumerate(
            zip(run.arrived_s.tolist(), run.prompt_tokens, run.output_tokens, strict=True)
        )
    ]
    serve(replica, requests)
    return replace(
        run,
        first_token_s=np.array([request.first_token_s for request in requests]),
        finished_s=np.array([request.finished_s for request in requests]),
    )


def run_figures(run: CalibrationRun) -> dict[str, float]:
    """Mean and p99 in seconds; TPOT over answers of two tokens or more."""
    ttft, tpot, latency = _durations(run)
    values = {"ttft": ttft, "tpot": tpot, "latency": latency}
    return {
        f"{name}_{kind}_s": float(figure(value))
        for name, value in values.items()
        for kind, figure in (("mean", np.mean), ("p99", lambda v: np.quantile(v, 0.99)))
    }


def calibrate(run: CalibrationRun, model: EngineModel) -> Calibration:
    """Fit step times by Levenberg-Marquardt over the logarithms of the six coefficients.

    Errors are over the means. Log TTFT has weight 0.1, so that requests that did not queue count too.
    """
    for prompt, output in zip(run.prompt_tokens, run.output_tokens, strict=True):
        model.check(prompt, output)
    target = _durations(run)

    def fitted(x: Array) -> EngineModel:
        return replace(model, step_time=StepTime(*np.exp(x).tolist()))

    def errors(x: Array) -> Array:
        found = _durations(simulate_run(fitted(x), run))
        parts = [(mine - theirs) / theirs.mean() for mine, theirs in zip(found, target, strict=True)]
        return np.concatenate([*parts, 0.1 * (np.log(found[0]) - np.log(target[0]))])

    starts = [np.log(np.array([getattr(start, name) for name in FIELDS])) for start in STARTS]
    found = [_least_squares(errors, start) for start in starts]
    best = fitted(min(found, key=lambda x: float(errors(x) @ errors(x))))
    return Calibration(best, run_figures(run), run_figures(simulate_run(best, run)))


def _least_squares(errors: Any, x: Array) -> Array:
    found = errors(x)
    damping = 0.01
    for _ in range(ITERATIONS):
        slopes = np.stack([(errors(x + step) - found) / PROBE for step in np.eye(len(x)) * PROBE], axis=1)
        products = slopes.T @ slopes
        before = found @ found
        for _ in range(TRIALS):
            damped = products + damping * np.diag(np.diag(products) + 1e-9)
            move = np.linalg.solve(damped, -slopes.T @ found).clip(-LONGEST_MOVE, LONGEST_MOVE)
            tried = errors(x + move)
            if tried @ tried < before:
                x, found, damping = x + move, tried, damping / 3
                break
            damping *= 3
        if found @ found > before * (1 - ENOUGH):
            break
    return x


def _durations(run: CalibrationRun) -> tuple[Array, Array, Array]:
    tokens: Many[int] = run.output_tokens
    ttft = np.maximum(run.first_token_s - run.arrived_s, 1e-6)
    more = np.array(tokens) > 1
    tpot = (run.finished_s - run.first_token_s)[more] / (np.array(tokens)[more] - 1)
    return ttft, tpot, run.finished_s - run.arrived_s
