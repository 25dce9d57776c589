"""Two pools: some replicas prefill, the KV cache is sent over the network, the others decode.

A prefill replica frees a prompt's KV cache as soon as it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

from forebay.errors import SettingError
from forebay.fleet.admission import ImmediateDispatcher
from forebay.fleet.estimate import ExpectedTtft, fullness, least
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.planning.simulate import Simulation, Slo, fleet_of
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.replica import SimRequest
from forebay.planning.simulate.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Transfer:
    """`latency_s`, then `bytes_per_token` for each token at `bandwidth` bytes a second."""

    bytes_per_token: float = 131_072.0
    bandwidth: float = 12.5e9
    latency_s: float = 0.005

    def __post_init__(self) -> None:
        if not (self.bytes_per_token >= 0 and self.bandwidth > 0 and 0 <= self.latency_s < math.inf):
            raise SettingError(
                "transfer: expected bytes and a latency of at least 0 and a bandwidth above 0, found "
                f"{self.bytes_per_token:g}, {self.latency_s:g} and {self.bandwidth:g}"
            )

    def seconds(self, tokens: int) -> float:
        return self.latency_s + tokens * self.bytes_per_token / self.bandwidth


@dataclass(frozen=True, slots=True)
class Split:
    prefill: int
    decode: int

    def __post_init__(self) -> None:
        if min(self.prefill, self.decode) < 1:
            raise SettingError(
                f"split: expected at least one replica in each pool, found {self.prefill} that prefill and "
                f"{self.decode} that decode"
            )


class LeastFull:
    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        return least(fullness(fleet), fleet)


@dataclass(frozen=True, slots=True)
class TwoPools:
    trace: Many[TraceRequest]
    model: EngineModel
    slo: Slo = field(default_factory=Slo)
    transfer: Transfer = field(default_factory=Transfer)

    def goodput(self, split: Split, scale: float = 1.0) -> float:
        """The share of requests within the SLO, arrival times scaled by `scale`. Raises `SettingError`.

        Prompts go to the earliest expected first token, prefilled ones to the least full replica.
        """
        answered = self.serve(split, scale)
        return sum(map(self.slo.met, answered)) / max(len(answered), 1)

    def serve(self, split: Split, scale: float = 1.0) -> list[SimRequest]:
        """The requests arrive at the decode pool with their KV cache."""
        prompts = []
        for index, one in enumerate(self.trace):
            self.model.check(one.prompt_tokens, one.output_tokens)
            arrived_s = one.arrived_s * scale
            due_s = self.slo.due_s(arrived_s, one.prompt_tokens, self.model)
            demand = RoutingRequest(one.prompt_tokens, one.blocks, due_s=due_s)
            prompts.append(SimRequest(index, arrived_s, demand, 1))
        _run([self.model] * split.prefill, prompts, ExpectedTtft())
        answers = []
        for prompt in prompts:
            here_s = prompt.first_token_s + self.transfer.seconds(prompt.prompt_tokens)
            # Prefixes do not matter here: the whole KV cache is sent over the network.
            demand = replace(prompt.demand, blocks=())
            answers.append(SimRequest(prompt.index, here_s, demand, self.trace[prompt.index].output_tokens))
        answers.sort(key=lambda answer: (answer.arrived_s, answer.index))
        _run([decoder(self.model)] * split.decode, answers, LeastFull())
        return answers


def decoder(model: EngineModel) -> EngineModel:
    """The engine with free prompts: the first token takes a step."""
    return replace(
        model,
        step_time=replace(model.step_time, prefill_s=0.0, attention_s=0.0, prefill_step_s=0.0),
        max_num_batched_tokens=model.kv_tokens + model.max_num_seqs + 1,
    )


def _run(models: Many[EngineModel], requests: Many[SimRequest], policy: ExpectedTtft | LeastFull) -> None:
    fleet = fleet_of(models)
    Simulation(models, fleet, ImmediateDispatcher(fleet, policy)).run(requests)
