"""A trace, a fleet and a way to dispatch: what one simulation is made of."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from forebay.fleet.admission import Admission
from forebay.fleet.dispatch import Dispatcher, ImmediateDispatcher
from forebay.fleet.policy_registry import DEFAULT_POLICY, POLICIES, make_policy
from forebay.fleet.routing_request import RoutingRequest
from forebay.fleet.state import Fleet
from forebay.simulate.engine import EngineModel
from forebay.simulate.figures import Figures, Slo, figures
from forebay.simulate.replica import Sequence
from forebay.simulate.run import Simulation, fleet_of
from forebay.simulate.traces import TraceRequest

NEVER_HELD = f"{DEFAULT_POLICY}_at_once"
"""The default's routing without its admission: each request is sent when it comes."""
NAMES = (*POLICIES.own, NEVER_HELD)
REPORT_EVERY_S = 0.05
"""How often replicas report their load to the rules that go by reports: llm-d's default."""
REPORT_READERS = frozenset(("llm_d",))

MakeDispatcher = Callable[[Fleet], Dispatcher[Sequence]]


def dispatcher_for(name: str, *, seed: int = 0) -> MakeDispatcher:
    """How `forebay` dispatches under this name: the default holds back what no replica has room for, every
    other policy sends each request when it comes. Raises `SettingError` for an unknown name.
    """
    if name == DEFAULT_POLICY:
        return Admission
    policy = make_policy(DEFAULT_POLICY if name == NEVER_HELD else name, seed=seed)
    return lambda fleet: ImmediateDispatcher(fleet, policy)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Requests offered to `replicas` equal replicas."""

    trace: Many[TraceRequest]
    model: EngineModel
    replicas: int = 8
    slo: Slo = field(default_factory=Slo)
    seed: int = 0

    def capacity_per_s(self) -> float:
        """Requests per second that the fleet finishes when the whole trace waits at the start, dealt out in
        turn and without cached prefixes: what it can do whatever the policy.
        """
        bare = [TraceRequest(0.0, one.prompt_tokens, one.output_tokens) for one in self.trace]
        requests = self.offer(bare, 0.0)
        self.serve(requests, dispatcher_for("round_robin"))
        return len(requests) / max(request.finished_s for request in requests)

    def time_scale(self, load: float, capacity_per_s: float) -> float:
        """What the trace's arrivals are stretched by so that its mean rate is `load` times the capacity."""
        span_s = self.trace[-1].arrived_s - self.trace[0].arrived_s
        return len(self.trace) / (load * capacity_per_s * span_s) if span_s else 1.0

    def offer(self, trace: Many[TraceRequest], scale: float) -> list[Sequence]:
        """New requests like those of the trace, due by the SLO. Raises `SettingError` for one too large."""
        made = []
        for index, one in enumerate(trace):
            self.model.check(one.prompt_tokens, one.output_tokens)
            arrived_s = one.arrived_s * scale
            due_s = self.slo.due_s(arrived_s, one.prompt_tokens, self.model)
            demand = RoutingRequest(one.prompt_tokens, one.blocks, due_s=due_s)
            made.append(Sequence(index, arrived_s, demand, one.output_tokens))
        return made

    def serve(
        self, requests: Many[Sequence], make: MakeDispatcher, *, report_every_s: float | None = None
    ) -> Simulation:
        """Let a fresh fleet serve the requests to their end."""
        models = [self.model] * self.replicas
        fleet = fleet_of(models)
        simulation = Simulation(models, fleet, make(fleet), report_every_s=report_every_s)
        simulation.run(requests)
        return simulation

    def run(self, name: str, scale: float = 1.0) -> Figures:
        """The figures of one policy at one stretch of the trace's arrivals."""
        requests = self.offer(self.trace, scale)
        report_every_s = REPORT_EVERY_S if name in REPORT_READERS else None
        make = dispatcher_for(name, seed=self.seed)
        simulation = self.serve(requests, make, report_every_s=report_every_s)
        return figures(requests, simulation.replicas, self.slo)
