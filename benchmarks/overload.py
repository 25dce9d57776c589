"""Offers twice the capacity for two minutes, then half, to admission and to other methods."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from forebay.fleet.admission import Admission
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest
from forebay.planning.simulate import REPORT_EVERY_S, MakeDispatcher, Scenario, Simulation, fleet_of
from forebay.planning.simulate.replica import SimRequest as Simulated
from forebay.planning.simulate.traces import TraceRequest

OVERLOAD, OVERLOAD_S = 2.0, 120.0
RELIEF, RELIEF_S = 0.5, 240.0
CONSTANTS = (4, 16, 64, 256)
WATCH_EVERY_S = 0.5
AIMD_FIRST = 4.0
QUEUE_DEPTH, KV_USAGE = 5, 0.8


@dataclass(frozen=True, slots=True)
class Overload:
    """Figures of one method. `goodput_of_capacity`: answers within the SLO to requests of the
    overload, per second, over the capacity. `tokens_of_capacity`: the same in prompt tokens,
    because a method that drops requests can keep more of the short ones. `cleared_s`: from the end
    of the overload until its last waiting request was gone; `arithmetic_s`: the minimum of that.
    `longest_wait_s`: from arrival to first token, of answered requests."""

    goodput_of_capacity: float
    tokens_of_capacity: float
    answered: int
    given_up: int
    unanswered: int
    cleared_s: float
    arithmetic_s: float
    engine_waiting_mean: float
    engine_waiting_max: float
    longest_wait_s: float
    ttft_mean_s: float


class InOrder:
    """Sends requests in order, each to the replica with the fewest requests that has room."""

    wake_s = math.inf

    def __init__(self, fleet: ReplicaTable) -> None:
        self._fleet = fleet
        self._waiting: deque[tuple[Simulated, RoutingRequest]] = deque()
        self._expired: list[Simulated] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: Simulated, demand: RoutingRequest, now_s: float) -> None:
        self._waiting.append((item, demand))

    def ready(self, now_s: float) -> list[tuple[Simulated, InFlightRequest]]:
        sent = []
        fleet = self._fleet
        while self._waiting:
            requests = np.where(self._room(now_s), fleet.requests, math.inf)
            replica = int(requests.argmin())
            if requests[replica] == math.inf:
                break
            item, demand = self._waiting.popleft()
            if demand.deadline_s < now_s:
                self._expired.append(item)
                continue
            charge = fleet.take(replica, demand, fleet.cached(demand), now_s)
            self._took(charge, demand)
            sent.append((item, charge))
        return sent

    def remove(self, item: Simulated) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not item)

    def expired(self) -> list[Simulated]:
        expired, self._expired = self._expired, []
        return expired

    def _room(self, now_s: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        raise NotImplementedError

    def _took(self, charge: InFlightRequest, demand: RoutingRequest) -> None: ...


class FixedLimit(InOrder):
    def __init__(self, fleet: ReplicaTable, limit: int) -> None:
        super().__init__(fleet)
        self._limit = limit

    def _room(self, now_s: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self._fleet.requests < self._limit


class Aimd(InOrder):
    """Additive increase, multiplicative decrease of each replica's limit (Chiu and Jain, 1989)."""

    def __init__(self, fleet: ReplicaTable) -> None:
        super().__init__(fleet)
        self._limits = np.full(fleet.count, AIMD_FIRST)
        self._cut_s = np.full(fleet.count, -math.inf)
        self._sent: list[deque[tuple[InFlightRequest, float]]] = [deque() for _ in range(fleet.count)]

    def _took(self, charge: InFlightRequest, demand: RoutingRequest) -> None:
        self._sent[charge.replica].append((charge, demand.due_s))

    def _room(self, now_s: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        for replica, sent in enumerate(self._sent):
            while sent and not math.isnan(sent[0][0].first_token_s):
                charge, due_s = sent.popleft()
                if charge.first_token_s <= due_s:
                    self._limits[replica] += 1 / self._limits[replica]
                elif charge.sent_s >= self._cut_s[replica]:
                    self._limits[replica] = max(1.0, self._limits[replica] / 2)
                    self._cut_s[replica] = now_s
        return self._fleet.requests < np.floor(self._limits)


class Saturation(InOrder):
    """llm-d's rule: a replica has room if at most `QUEUE_DEPTH` requests wait there and its KV cache is used
    up to `KV_USAGE`, as last reported (defaults of the Gateway API Inference Extension)."""

    def _room(self, now_s: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fleet = self._fleet
        return (fleet.reported_waiting <= QUEUE_DEPTH) & (fleet.reported_kv <= KV_USAGE)


def overload_arrivals(trace: Sequence[TraceRequest], capacity_per_s: float, seed: int) -> list[TraceRequest]:
    random = Random(seed)
    now_s = 0.0
    made: list[TraceRequest] = []
    while now_s < OVERLOAD_S + RELIEF_S:
        made.append(replace(trace[len(made) % len(trace)], arrived_s=now_s))
        load = OVERLOAD if now_s < OVERLOAD_S else RELIEF
        now_s += random.expovariate(load * capacity_per_s)
    return made


def measure_overload(scenario: Scenario) -> dict[str, Any]:
    capacity_per_s = scenario.capacity_per_s()
    arrivals = overload_arrivals(scenario.trace, capacity_per_s, scenario.seed)
    ways: dict[str, MakeDispatcher] = {"admission": Admission, "patient": Admission}
    ways |= {"aimd": Aimd, "saturation": Saturation}
    for constant in CONSTANTS:
        ways[f"fixed_{constant}"] = partial(FixedLimit, limit=constant)
    return {
        "engine": scenario.model.name,
        "replicas": scenario.replicas,
        "capacity_per_s": capacity_per_s,
        "slo": asdict(scenario.slo),
        "requests": len(arrivals),
        "ways": {
            name: asdict(_measure(scenario, arrivals, make, capacity_per_s, name != "patient"))
            for name, make in ways.items()
        },
    }


def _measure(
    scenario: Scenario,
    arrivals: Sequence[TraceRequest],
    make: MakeDispatcher,
    capacity_per_s: float,
    give_up: bool,
) -> Overload:
    requests = scenario.offer(arrivals, 1.0)
    if give_up:
        for request in requests:
            request.demand = replace(request.demand, deadline_s=request.demand.due_s)
    models = [scenario.model] * scenario.replicas
    fleet = fleet_of(models)
    dispatcher = make(fleet)
    reports_s = REPORT_EVERY_S if isinstance(dispatcher, Saturation) else None
    simulation = Simulation(models, fleet, dispatcher, watch_every_s=WATCH_EVERY_S, report_every_s=reports_s)
    simulation.run(requests)
    given_up = len(simulation.given_up)
    answered = [request for request in requests if not math.isnan(request.finished_s)]
    early = [request for request in requests if request.arrived_s < OVERLOAD_S]
    good = [request.prompt_tokens for request in early if scenario.slo.met(request)]
    mean_tokens = sum(one.prompt_tokens for one in scenario.trace) / len(scenario.trace)
    waits = np.array([request.first_token_s - request.arrived_s for request in answered])
    gone = [request.first_token_s for request in early if not math.isnan(request.finished_s)]
    excess = (OVERLOAD - 1) * OVERLOAD_S / (1 - RELIEF) if not give_up else 0.0
    watched = [(at_s, waiting) for at_s, waiting in simulation.watched if at_s < OVERLOAD_S]
    return Overload(
        goodput_of_capacity=len(good) / (OVERLOAD_S * capacity_per_s),
        tokens_of_capacity=sum(good) / (OVERLOAD_S * capacity_per_s * mean_tokens),
        answered=len(answered),
        given_up=given_up,
        unanswered=len(requests) - len(answered) - given_up,
        cleared_s=max(gone) - OVERLOAD_S,
        arithmetic_s=excess,
        engine_waiting_mean=float(np.mean([waiting for _, waiting in watched])) / scenario.replicas,
        engine_waiting_max=max(waiting for _, waiting in watched) / scenario.replicas,
        longest_wait_s=float(waits.max()),
        ttft_mean_s=float(waits.mean()),
    )
