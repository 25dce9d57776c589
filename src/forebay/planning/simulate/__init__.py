"""A simulation: a trace, a fleet of simulated replicas, and a dispatcher."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import cycle

import numpy as np

from forebay.fleet.admission import Admission, Dispatcher, ImmediateDispatcher
from forebay.fleet.config import DEFAULT_POLICY
from forebay.fleet.policies import POLICIES, make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest
from forebay.pages.charts import Line, share_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import SECONDS
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.replica import SimRequest, SimulatedReplica
from forebay.planning.simulate.traces import TraceRequest
from forebay.records import ReplicaLoad


@dataclass(frozen=True, slots=True)
class Slo:
    """First token within `ttft_s` plus `ttft_ratio` times the prompt's time on an idle replica, then one
    every `tpot_s` on average.

    With a fixed limit, long prompts would always miss it.
    """

    ttft_s: float = 1.0
    ttft_ratio: float = 5.0
    tpot_s: float = 0.2

    def due_s(self, arrived_s: float, prompt_tokens: int, model: EngineModel) -> float:
        return arrived_s + self.ttft_s + self.ttft_ratio * model.alone_s(prompt_tokens)

    def met(self, sequence: SimRequest) -> bool:
        if not sequence.first_token_s <= sequence.demand.due_s:
            return False
        took_s = sequence.finished_s - sequence.first_token_s
        return took_s <= self.tpot_s * max(1, sequence.output_tokens - 1)


QUANTILES = 101


@dataclass(frozen=True, slots=True)
class Figures:
    """In seconds, of answered requests. `goodput`: of all offered requests. `imbalance`: the busiest
    replica's working time over the mean. `ttft_s`, `latency_s`: the 0, 1, …, 100 % quantiles."""

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


def fleet_of(models: Many[EngineModel]) -> ReplicaTable:
    limits = [
        ReplicaLimits(str(number), model.kv_tokens, model.max_num_seqs) for number, model in enumerate(models)
    ]
    return ReplicaTable(limits, block_tokens=models[0].block_tokens)


class Simulation:
    """Deterministic, bit for bit. With `report_every_s`, replicas report their load at the first arrival
    after each interval."""

    def __init__(
        self,
        models: Many[EngineModel],
        fleet: ReplicaTable,
        dispatcher: Dispatcher[SimRequest],
        *,
        report_every_s: float | None = None,
        watch_every_s: float | None = None,
    ) -> None:
        self.replicas = [SimulatedReplica(model) for model in models]
        self.fleet = fleet
        self.dispatcher = dispatcher
        self._report_every_s = report_every_s
        self._report_s = math.inf if report_every_s is None else 0.0
        self.given_up: list[SimRequest] = []
        self.watched: list[tuple[float, int]] = []
        """With `watch_every_s`: requests waiting in all engines, at the first arrival after each interval."""
        self._watch_every_s = watch_every_s
        self._watch_s = math.inf if watch_every_s is None else 0.0
        self._tickets: dict[SimRequest, InFlightRequest] = {}
        self._due: list[tuple[float, int]] = []

    def run(self, requests: Many[SimRequest]) -> None:
        self.advance(requests, math.inf)
        self.given_up += self.dispatcher.expired()

    def advance(self, requests: Many[SimRequest], end_s: float) -> None:
        """Simulate until `end_s`; `requests` are ordered by arrival and all before it."""
        dispatcher, due = self.dispatcher, self._due
        add, until = dispatcher.add, self._run_until
        for request in requests:
            now_s = request.arrived_s
            if (due and due[0][0] < now_s) or dispatcher.wake_s < now_s:
                until(now_s)
            if now_s >= self._report_s:
                self._report(now_s)
            if now_s >= self._watch_s:
                self._watch(now_s)
            add(request, request.demand, now_s)
            self._send(now_s)
        until(end_s)

    def _run_until(self, end_s: float) -> None:
        due, replicas, tickets = self._due, self.replicas, self._tickets
        dispatcher, fleet = self.dispatcher, self.fleet
        first: list[SimRequest] = []
        finished: list[SimRequest] = []
        while True:
            wake_s = dispatcher.wake_s
            if not due or wake_s < due[0][0]:
                if wake_s >= end_s:
                    return
                self._send(wake_s)
                continue
            if due[0][0] >= end_s:
                return
            now_s, number = heappop(due)
            replica = replicas[number]
            if replica.next_s != now_s:
                continue  # its run was cut short since
            replica.fire(first, finished)
            if replica.next_s < math.inf:
                heappush(due, (replica.next_s, number))
            if first or finished:
                for sequence in first:
                    fleet.first_token(tickets[sequence], now_s)
                for sequence in finished:
                    fleet.finish(tickets.pop(sequence), now_s, sequence.output_tokens)
                first.clear()
                finished.clear()
                if len(dispatcher):
                    self._send(now_s)

    def _send(self, now_s: float) -> None:
        for sequence, ticket in self.dispatcher.ready(now_s):
            self._tickets[sequence] = ticket
            number = sequence.replica = ticket.replica
            replica = self.replicas[number]
            before_s = replica.next_s
            replica.submit(sequence, now_s)
            if replica.next_s != before_s:
                heappush(self._due, (replica.next_s, number))

    def _watch(self, now_s: float) -> None:
        assert self._watch_every_s is not None
        self._watch_s = now_s + self._watch_every_s
        self.watched.append((now_s, sum(replica.waiting for replica in self.replicas)))

    def _report(self, now_s: float) -> None:
        assert self._report_every_s is not None
        self._report_s = now_s + self._report_every_s
        for number, replica in enumerate(self.replicas):
            load = ReplicaLoad(now_s, replica.running, replica.waiting, replica.kv_usage)
            self.fleet.report(number, load)


NEVER_HELD = f"{DEFAULT_POLICY}_at_once"
"""Without admission: each request is sent on arrival."""
NAMES = (*POLICIES.own, NEVER_HELD)
REPORT_EVERY_S = 0.05
"""llm-d's default, for the policies that use load reports."""
REPORT_READERS = frozenset(("llm_d",))

MakeDispatcher = Callable[[ReplicaTable], Dispatcher[SimRequest]]


def dispatcher_for(name: str, *, seed: int = 0) -> MakeDispatcher:
    """The default policy holds back requests while no replica has room; others send on arrival.

    Raises `SettingError` for an unknown name.
    """
    if name == DEFAULT_POLICY:
        return Admission
    policy = make_policy(DEFAULT_POLICY if name == NEVER_HELD else name, seed=seed)
    return lambda fleet: ImmediateDispatcher(fleet, policy)


@dataclass(frozen=True, slots=True)
class Scenario:
    trace: Many[TraceRequest]
    model: EngineModel
    replicas: int = 8
    slo: Slo = field(default_factory=Slo)
    seed: int = 0

    def capacity_per_s(self) -> float:
        """Requests per second if the whole trace waits at the start, without cached prefixes."""
        bare = [TraceRequest(0.0, one.prompt_tokens, one.output_tokens) for one in self.trace]
        requests = self.offer(bare, 0.0)
        self.serve(requests, dispatcher_for("round_robin"))
        return len(requests) / max(request.finished_s for request in requests)

    def time_scale(self, load: float, capacity_per_s: float) -> float:
        span_s = self.trace[-1].arrived_s - self.trace[0].arrived_s
        return len(self.trace) / (load * capacity_per_s * span_s) if span_s else 1.0

    def offer(self, trace: Many[TraceRequest], scale: float) -> list[SimRequest]:
        """Raises `SettingError` for a request that is too large."""
        made = []
        for index, one in enumerate(trace):
            self.model.check(one.prompt_tokens, one.output_tokens)
            arrived_s = one.arrived_s * scale
            due_s = self.slo.due_s(arrived_s, one.prompt_tokens, self.model)
            demand = RoutingRequest(one.prompt_tokens, one.blocks, due_s=due_s)
            made.append(SimRequest(index, arrived_s, demand, one.output_tokens))
        return made

    def serve(
        self, requests: Many[SimRequest], make: MakeDispatcher, *, report_every_s: float | None = None
    ) -> Simulation:
        models = [self.model] * self.replicas
        fleet = fleet_of(models)
        simulation = Simulation(models, fleet, make(fleet), report_every_s=report_every_s)
        simulation.run(requests)
        return simulation

    def run(self, name: str, scale: float = 1.0) -> Figures:
        requests = self.offer(self.trace, scale)
        report_every_s = REPORT_EVERY_S if name in REPORT_READERS else None
        make = dispatcher_for(name, seed=self.seed)
        simulation = self.serve(requests, make, report_every_s=report_every_s)
        return figures(requests, simulation.replicas, self.slo)
