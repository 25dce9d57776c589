"""Loads for scaling policies: recorded hours, stretched, and made-up days and bursts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.autoscale.fluid import Array, Load, WorkModel, drawn, load_of
from forebay.planning.simulate.traces import TraceRequest

DAY_S = 86_400
WEEK_S = 7 * DAY_S
SURGES = ((9.0, 0.6, 1.5), (12.5, 0.5, 1.3), (15.5, 2.5, 0.8), (20.0, 1.5, 0.5))
"""Hour, width in hours and height of a working day's surges, on top of `NIGHT`."""
NIGHT = 0.06
WEEKEND = 0.55
SHIFT_H = 0.15
"""How far a surge moves from day to day: the standard deviation in hours."""
WOBBLE = 0.08
"""Standard deviation of slow changes that do not repeat daily, as a share of the rate."""
WOBBLE_S = 600
BURST_S = 600
QUIET_S = 1500


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    load: Load
    model: WorkModel
    history: Load | None = None
    daily: bool = False


def stretched(
    name: str,
    trace: Sequence[TraceRequest],
    model: WorkModel,
    *,
    stretch: float,
    replicas: float,
    seed: int = 0,
) -> Case:
    return Case(name, load_of(trace, model, stretch=stretch, replicas=replicas, seed=seed), model)


def days(trace: Sequence[TraceRequest], model: WorkModel, *, replicas: float, seed: int = 0) -> Case:
    """A working day with surges in the morning and at noon and a quiet night, after a week of
    history."""
    random = np.random.default_rng(seed)
    rates = np.concatenate([_day(day % 7, random) for day in range(8)])
    rates *= replicas / float(rates[WEEK_S:].mean())
    whole = _made(rates, trace, model, seed)
    return Case("days", whole.part(WEEK_S, len(whole)), model, whole.part(0, WEEK_S), daily=True)


def bursts(
    trace: Sequence[TraceRequest],
    model: WorkModel,
    *,
    times: float,
    replicas: float,
    count: int = 8,
    seed: int = 0,
) -> Case:
    """Steps to `times` the rate for ten minutes each, after random quiet times of 25 minutes on
    average."""
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(count):
        quiet_s = int(random.uniform(0.5, 1.5) * QUIET_S)
        parts += [np.full(quiet_s, replicas), np.full(BURST_S, replicas * times)]
    parts.append(np.full(QUIET_S // 2, replicas))
    return Case(f"bursts_{times:g}x", _made(np.concatenate(parts), trace, model, seed), model)


def _day(weekday: int, random: np.random.Generator) -> Array:
    hours = np.arange(DAY_S) / 3600
    rate = np.full(DAY_S, NIGHT)
    for hour, width, height in SURGES:
        middle = hour + random.normal(0, SHIFT_H)
        rate += height * np.exp(-(((hours - middle) / width) ** 2))
    rate *= WEEKEND if weekday >= 5 else 1.0
    knots = random.normal(0, WOBBLE, DAY_S // WOBBLE_S + 1)
    wobble = np.interp(np.arange(DAY_S) / WOBBLE_S, np.arange(len(knots)), knots)
    changed: Array = rate * np.exp(wobble)
    return changed


def _made(work_rate: Array, trace: Sequence[TraceRequest], model: WorkModel, seed: int) -> Load:
    random = np.random.default_rng(seed + 1)
    prompts = np.array([one.prompt_tokens for one in trace], float)
    outputs = np.array([one.output_tokens for one in trace], float)
    work = model.work_s(prompts, outputs)
    count = drawn(Load(*(work_rate / float(work.mean()),) * 4), seed).requests.astype(int)
    at = np.repeat(np.arange(len(count)), count)
    drawn_ones = random.integers(0, len(work), len(at))
    values = (np.ones(len(work)), prompts, outputs, work)
    return Load(*(np.bincount(at, each[drawn_ones], len(count)).astype(float) for each in values))
