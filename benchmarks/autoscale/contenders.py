"""Every other policy at every useful setting, and every fixed number of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.autoscale.drive import MAX_REPLICAS, drive, speed_of, timings_of
from benchmarks.autoscale.fluid import View, run_fleet
from benchmarks.autoscale.loads import Case
from forebay.fleet.autoscale.base import ReplicaSpeed, ScalingPolicy, ServiceClass
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, PlannedCapacity, QueueLength

DEADLINE, FIXED = "deadline", "fixed"
OTHERS = ("queue", "batch", "kv_cache", "capacity")
HOLDS_S = (0.0, 60.0, 300.0)
WINDOWS_S = (15.0, 60.0, 300.0)
USES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
STEPS = 8
ENOUGH = 0.9999
"""Share of requests within the objective with which a fixed fleet is large enough."""


@dataclass(frozen=True, slots=True)
class Point:
    """One policy at one setting: goodput, replica-seconds, changes of the number of replicas, and the largest
    backlog in tokens."""

    policy: str
    setting: str
    goodput: float
    replica_seconds: float
    actions: int
    max_backlog_tokens: float


def settings_of(policy: str, case: Case) -> Iterator[tuple[str, Callable[[], ScalingPolicy]]]:
    """Settings of a policy to try on this load, each with a description."""
    model, speed = case.model, speed_of(case)
    if policy == "capacity":
        for use in USES:
            for window_s in WINDOWS_S:
                for hold_s in HOLDS_S:
                    yield (
                        f"use {use:g}, window {window_s:g} s, hold {hold_s:g} s",
                        _capacity(speed, use, window_s, hold_s),
                    )
        return
    per_second = 1 / model.mean_work_s
    spans = {
        # From a tenth of a second's requests of one replica to a minute's.
        "queue": (0.1 * per_second, 60 * per_second),
        # From a tenth busy to nearly full.
        "batch": (model.running(0.15) * model.mean_context, model.running(0.98) * model.mean_context),
        "kv_cache": (
            model.running(0.15) * model.mean_context / model.engine.kv_tokens,
            min(model.running(0.98) * model.mean_context / model.engine.kv_tokens, 0.95),
        ),
    }
    low, high = spans[policy]
    kinds: dict[str, Callable[[float, float], ScalingPolicy]] = {
        "queue": QueueLength, "batch": BatchedTokens, "kv_cache": KvCacheUse,
    }  # fmt: skip
    for target in np.geomspace(low, high, STEPS).tolist():
        for hold_s in HOLDS_S:
            yield f"target {target:.3g}, hold {hold_s:g} s", _made(kinds[policy], target, hold_s)


def _capacity(speed: ReplicaSpeed, use: float, window_s: float, hold_s: float) -> Callable[[], ScalingPolicy]:
    return lambda: PlannedCapacity(speed, use, window_s, hold_s)


def _made(
    kind: Callable[[float, float], ScalingPolicy], target: float, hold_s: float
) -> Callable[[], ScalingPolicy]:
    return lambda: kind(target, hold_s)


def start_of(case: Case) -> int:
    """Replicas at the start of the load, the same for all policies: what its first five minutes need."""
    return max(1, math.ceil(float(case.load.work_s[:300].mean())))


def sweep(policy: str, case: Case, *, slo_s: float, boot_s: float) -> list[Point]:
    found = []
    for words, make in settings_of(policy, case):
        run = drive(make(), case, slo_s=slo_s, boot_s=boot_s, start=start_of(case))
        found.append(
            Point(policy, words, run.goodput, run.replica_seconds, run.actions, run.max_backlog_tokens)
        )
    return found


def fixed(case: Case, *, slo_s: float, boot_s: float) -> list[Point]:
    """Every fixed number of replicas, up to one that is enough for all requests."""
    found = []
    mean = float(case.load.work_s.mean())
    for number in range(max(1, int(mean / 2)), MAX_REPLICAS):
        run = run_fleet(
            case.load, case.model, partial(_always, number), slo_s=slo_s, boot_s=boot_s, start=number
        )
        found.append(Point(FIXED, str(number), run.goodput, run.replica_seconds, 0, run.max_backlog_tokens))
        if run.goodput >= ENOUGH:
            break
    return found


def _always(number: int, view: View) -> int:
    return number


def run_deadline(case: Case, *, slo_s: float, boot_s: float) -> Point:
    """The default policy at its defaults."""
    policy = DeadlinePolicy(speed_of(case), (ServiceClass(slo_s=slo_s),), timings_of(case, boot_s))
    run = drive(policy, case, slo_s=slo_s, boot_s=boot_s, start=start_of(case))
    return Point(DEADLINE, "default", run.goodput, run.replica_seconds, run.actions, run.max_backlog_tokens)
