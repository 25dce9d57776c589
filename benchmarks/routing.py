"""Compares routing policies in the simulator over a range of loads, and times one decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from forebay.errors import SettingError
from forebay.fleet.policies import DEFAULT_POLICY, POLICIES, make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate import NAMES, Scenario
from forebay.planning.simulate.figures import Figures

SWEEP = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3)
TWO_LOADS = (0.7, 0.9)
MIN_GAIN = 0.9
"""The default's mean TTFT must be at most this times the best other policy's, at `TWO_LOADS`."""
SIZES = (8, 100, 1000)
PROMPT_TOKENS = 4000
DECISIONS = 2000

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """Every policy at every load, and the time of one decision by number of replicas."""

    scenario: Scenario
    capacity_per_s: float
    loads: tuple[float, ...]
    policies: dict[str, list[Figures]]
    decision_us: dict[int, float] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        return [name for name in self.policies if not name.startswith(DEFAULT_POLICY)]

    def comparison(self) -> list[dict[str, Any]]:
        """The default against the best other policy, per load; empty without either."""
        if DEFAULT_POLICY not in self.policies or not self.others:
            return []
        found = []
        for at, load in enumerate(self.loads):
            mine = self.policies[DEFAULT_POLICY][at]
            goodput = max(self.policies[name][at].goodput for name in self.others)
            ttft_s = min(self.policies[name][at].ttft_mean_s for name in self.others)
            found.append(
                {
                    "load": load,
                    "goodput": mine.goodput,
                    "best_other_goodput": goodput,
                    "ttft_mean_s": mine.ttft_mean_s,
                    "best_other_ttft_mean_s": ttft_s,
                    "ttft_ratio": mine.ttft_mean_s / ttft_s if ttft_s else 1.0,
                }
            )
        return found

    @property
    def passed(self) -> bool:
        """Whether the default has at least the others' goodput at every load, and the gain in TTFT."""
        return all(
            entry["goodput"] >= entry["best_other_goodput"]
            and (entry["load"] not in TWO_LOADS or entry["ttft_ratio"] <= MIN_GAIN)
            for entry in self.comparison()
        )

    def document(self) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "engine": scenario.model.name,
            "replicas": scenario.replicas,
            "requests": len(scenario.trace),
            "seed": scenario.seed,
            "slo": asdict(scenario.slo),
            "capacity_per_s": self.capacity_per_s,
            "loads": list(self.loads),
            "policies": {
                name: [
                    {"load": load, **_without_quantiles(one)}
                    for load, one in zip(self.loads, found, strict=True)
                ]
                for name, found in self.policies.items()
            },
            "comparison": self.comparison(),
            "passed": self.passed,
            "decision_us": {str(count): cost for count, cost in self.decision_us.items()},
        }


def measure_routing(
    scenario: Scenario, loads: Sequence[float], policies: Sequence[str], note: Note = lambda _: None
) -> RoutingReport:
    """Serve the trace once per policy and load. Raises `SettingError` for an unknown policy or a bad load."""
    for name in policies:
        if name not in NAMES:
            raise SettingError(f"--policy: expected one of {', '.join(NAMES)}; found {name!r}")
    if not loads or min(loads) <= 0:
        raise SettingError(f"--load: expected shares of capacity above 0, found {list(loads)}")
    note("capacity")
    capacity_per_s = scenario.capacity_per_s()
    found: dict[str, list[Figures]] = {}
    for name in policies:
        found[name] = []
        for load in loads:
            note(f"{name} at {load:g} of capacity")
            found[name].append(scenario.run(name, scenario.time_scale(load, capacity_per_s)))
    note("the cost of a decision")
    costs = {count: decision_us(count) for count in SIZES}
    return RoutingReport(scenario, capacity_per_s, tuple(loads), found, costs)


def decision_us(replicas: int, *, block_tokens: int = 512, decisions: int = DECISIONS) -> float:
    """Median microseconds of one decision by the default policy.

    It looks up a prompt of 4,000 tokens, half of it cached by some replicas, chooses, and records the choice.
    """
    fleet = ReplicaTable(
        [ReplicaLimits(str(number), 500_000) for number in range(replicas)], block_tokens=block_tokens
    )
    policy = make_policy(DEFAULT_POLICY)
    whole = PROMPT_TOKENS // block_tokens
    took = []
    for at in range(decisions):
        shared = at % 50
        blocks = tuple((shared if i < whole // 2 else 1000 + at) << 20 | i for i in range(whole))
        demand = RoutingRequest(PROMPT_TOKENS, blocks)
        began_s = time.perf_counter()
        cached = fleet.cached(demand)
        replica = policy.choose(demand, cached, fleet, float(at))
        ticket = fleet.take(replica, demand, cached, float(at))
        took.append(time.perf_counter() - began_s)
        fleet.first_token(ticket, at + 0.5)
        fleet.finish(ticket, at + 1.0, output_tokens=10)
    return median(took) * 1e6


def default_policies() -> tuple[str, ...]:
    return tuple(POLICIES.own)


def _without_quantiles(one: Figures) -> dict[str, Any]:
    values = asdict(one)
    del values["ttft_s"], values["latency_s"]
    return values
