"""The cheapest fleet for a load that is known in advance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.autoscale.fluid import Array, Load

LEVELS = 2
"""Levels of backlog per replica and step."""
FINEST_S = 5
COARSEST_S = 15
SEARCHES = 7

Costs = NDArray[np.float32]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OraclePlan:
    """Replica-seconds with boots and drains, the share of work in time, and the number of ready replicas in
    each step of `step_s` seconds."""

    replica_seconds: float
    in_time: float
    step_s: int
    ready: tuple[int, ...]


def oracle(load: Load, *, slo_s: float, boot_s: float, drain_s: float, goal: float = 0.99) -> OraclePlan:
    """The cheapest plan that serves at least `goal` of the work in time.

    Dynamic programming over steps, ready replicas and backlog; dropped work has a price, which is
    searched for. Optimal except for steps of 5 to 15 s, work in half a replica's steps, and a share
    of work instead of requests.
    """
    step_s = int(min(max(slo_s // 4, FINEST_S), COARSEST_S))
    units = _in_units(load.work_s, step_s)
    low, high = 0.0, 4.0 * (boot_s + drain_s + step_s) / step_s
    best = _plan(units, slo_s, boot_s + drain_s, high, step_s)
    for _ in range(SEARCHES):
        price = (low + high) / 2
        plan = _plan(units, slo_s, boot_s + drain_s, price, step_s)
        if plan.in_time >= goal:
            high, best = price, plan
        else:
            low = price
    return best


def _in_units(work_s: Array, step_s: int) -> Counts:
    ends = np.minimum(np.arange(step_s, len(work_s) + step_s, step_s), len(work_s))
    total = np.cumsum(work_s)[ends - 1] * (LEVELS / step_s)
    units: Counts = np.diff(np.concatenate([[0.0], np.round(total)])).astype(np.int64)
    return units


def _plan(units: Counts, slo_s: float, start_s: float, price: float, step_s: int) -> OraclePlan:
    patience = max(int(slo_s // step_s), 1)
    came = np.concatenate([units, np.zeros(patience, np.int64)])
    steps = len(came)
    total = np.concatenate([[0], np.cumsum(came)])
    ends = np.arange(1, steps + 1)
    bound = total[ends] - total[np.maximum(ends - patience, 0)]
    """Only what arrived within the patience may wait; older work is dropped."""
    most = -(-int(bound.max()) // (LEVELS * patience)) + 1
    levels = int(bound.max()) + 1
    start = start_s / step_s
    cost: Costs = np.zeros((most + 1, levels), np.float32)
    starts = (np.arange(most + 1, dtype=np.float32) * np.float32(start))[:, None]
    up_to = np.zeros((steps, most + 1, levels), np.uint16)
    value = np.empty_like(cost)
    backlog = np.arange(levels)
    for t in range(steps - 1, -1, -1):
        arrived, limit = int(came[t]), int(bound[t])
        previous = int(bound[t - 1]) if t else 0
        width = previous + 1
        for n in range(most + 1):
            after = np.maximum(backlog[:width] + (arrived - n * LEVELS), 0)
            kept = np.minimum(after, limit)
            value[n, :width] = cost[n, kept] + (after - kept) * price + n
        here = value[:, :width]
        up, up_at = _least_from(here + starts)
        down, down_at = _least_to(here)
        up -= starts
        use_up = up < down
        cost[:, :width] = np.where(use_up, up, down)
        up_to[t, :, :width] = np.where(use_up, up_at, down_at)
    return _walk(up_to, came, bound, start_s, step_s)


def _least_to(values: Costs) -> tuple[Costs, Counts]:
    least = np.minimum.accumulate(values, axis=0)
    numbers = np.arange(len(values))[:, None]
    at = np.maximum.accumulate(np.where(values <= least, numbers, 0), axis=0)
    return least, at


def _least_from(values: Costs) -> tuple[Costs, Counts]:
    least, at = _least_to(values[::-1])
    return least[::-1].copy(), (len(values) - 1 - at)[::-1]


def _walk(
    choices: NDArray[np.uint16], came: Counts, bound: Counts, start_s: float, step_s: int
) -> OraclePlan:
    ready: list[int] = []
    now = backlog = lost = 0
    paid = 0.0
    for t, arrived in enumerate(came.tolist()):
        chosen = int(choices[t, now, backlog])
        paid += chosen * step_s + max(chosen - now, 0) * start_s
        now = chosen
        after = max(backlog + arrived - chosen * LEVELS, 0)
        backlog = min(after, int(bound[t]))
        lost += after - backlog
        ready.append(chosen)
    return OraclePlan(paid, 1 - lost / max(int(came.sum()), 1), step_s, tuple(ready))
