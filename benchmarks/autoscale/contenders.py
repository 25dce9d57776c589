"""Every other policy at every useful setting, and every fixed number of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.autoscale.fluid import FleetRun, View, run_fleet
from benchmarks.autoscale.loads import Case
from forebay.errors import ForebayError
from forebay.fleet.autoscale.base import (
    Backlog,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ScalingPolicy,
    ServiceClass,
    Signals,
    Timings,
    Tokens,
)
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, PlannedCapacity, QueueLength

INTERVAL_S = 5
HISTORY_STEP_S = 60
MAX_REPLICAS = 200
PARTS = 12
"""The largest number of parts of the reported backlog."""
CLASS = "default"


def speed_of(case: Case) -> ReplicaSpeed:
    model = case.model
    return ReplicaSpeed(model.prompt_s, model.output_s, max(1, int(model.batch)))


def timings_of(case: Case, boot_s: float) -> Timings:
    return Timings(boot_s, drain_s=case.model.stay_s, interval_s=INTERVAL_S)


def drive(policy: ScalingPolicy, case: Case, *, slo_s: float, boot_s: float, start: int) -> FleetRun:
    scaler = Scaler(policy, speed_of(case), ScalingLimits(most=MAX_REPLICAS))
    load, model = case.load, case.model
    if case.history is not None and isinstance(policy, DeadlinePolicy):
        teach(policy, case)
    sums = [values.cumsum() for values in (load.requests, load.prompt)]
    last = -1
    slo = round(slo_s)
    group = max(1, slo // PARTS)

    def decide(view: View) -> int:
        nonlocal last
        end = min(view.second, len(load) - 1)
        requests, prompt = (
            float(each[end]) - (float(each[last]) if last >= 0 else 0.0) if end > last else 0.0
            for each in sums
        )
        last = max(end, last)
        backlog = []
        number, due = -1, 0
        count = tokens = 0.0
        for one in view.waiting:
            if one.arrived // group != number:
                if count:
                    backlog.append(Backlog(due, Tokens(count, tokens, count * model.mean_output)))
                number, due = one.arrived // group, one.arrived + slo - view.second
                count = tokens = 0.0
            count += one.requests
            tokens += one.prompt
        if count:
            backlog.append(Backlog(due, Tokens(count, tokens, count * model.mean_output)))
        if view.late.requests > 0.01:
            of = Tokens(view.late.requests, view.late.prompt, view.late.requests * model.mean_output)
            backlog.append(Backlog(-1.0, of))
        held = view.running * model.mean_context
        signals = Signals(
            now_s=float(view.second),
            ready=view.ready,
            starting=tuple(float(view.second - since) for since in view.starting),
            draining=view.draining,
            booted_s=view.booted_s,
            backlog=tuple(backlog),
            arrived=((CLASS, Tokens(requests, prompt, requests * model.mean_output)),),
            running=view.running,
            running_tokens=held,
            kv_usage=min(held / (max(view.ready, 1) * model.engine.kv_tokens), 1.0),
        )
        found = scaler.decide(signals)
        if found.failed:
            raise ForebayError(f"{type(policy).__name__} at {view.second} s of the load: {found.reason}")
        return found.wanted

    return run_fleet(load, model, decide, slo_s=slo_s, boot_s=boot_s, start=start, interval_s=INTERVAL_S)


def teach(policy: DeadlinePolicy, case: Case) -> None:
    """Let the policy learn the history, which ends at 0 s."""
    history = case.history
    assert history is not None
    step = HISTORY_STEP_S
    for begin in range(0, len(history), step):
        part = history.part(begin, begin + step)
        requests = float(part.requests.sum())
        tokens = Tokens(requests, float(part.prompt.sum()), requests * case.model.mean_output)
        at = float(begin - len(history))
        policy.learn(at, at + step, ((CLASS, tokens),))


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
    policy = DeadlinePolicy(speed_of(case), (ServiceClass(slo_s=slo_s),), timings_of(case, boot_s))
    run = drive(policy, case, slo_s=slo_s, boot_s=boot_s, start=start_of(case))
    return Point(DEADLINE, "default", run.goodput, run.replica_seconds, run.actions, run.max_backlog_tokens)
