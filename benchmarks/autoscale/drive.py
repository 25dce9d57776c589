"""Lets a scaling policy control the simulated fleet."""

from __future__ import annotations

from benchmarks.autoscale.fluid import FleetRun, View, run_fleet
from benchmarks.autoscale.loads import Case
from forebay.errors import ForebayError
from forebay.fleet.autoscale.base import (
    Backlog,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ScalingPolicy,
    Signals,
    Timings,
    Tokens,
)
from forebay.fleet.autoscale.deadline import DeadlinePolicy

INTERVAL_S = 5
HISTORY_STEP_S = 60
MAX_REPLICAS = 200
PARTS = 12
"""The largest number of parts of the reported backlog."""
CLASS = "default"


def speed_of(case: Case) -> ReplicaSpeed:
    """A replica's speed on this load, as the planner computes it."""
    model = case.model
    return ReplicaSpeed(model.prompt_s, model.output_s, max(1, int(model.batch)))


def timings_of(case: Case, boot_s: float) -> Timings:
    return Timings(boot_s, drain_s=case.model.stay_s, interval_s=INTERVAL_S)


def drive(policy: ScalingPolicy, case: Case, *, slo_s: float, boot_s: float, start: int) -> FleetRun:
    """Let the policy scale the fleet for the whole load.

    It sees what it would see of a real fleet: the prompts' tokens, and the expected tokens of answers. Raises
    `ForebayError` if the policy fails: the figures would be those of an unscaled fleet.
    """
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
