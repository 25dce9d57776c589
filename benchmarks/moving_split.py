"""A fleet whose replicas move between a prefill and a decode pool as the requests change.

Each replica can do both (`kv_both` in vLLM's connectors). A replica that moves accepts no new request,
finishes its own, and then switches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Protocol

from forebay.fleet.admission import Admission, ImmediateDispatcher
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate import Simulation, fleet_of
from forebay.planning.simulate.disaggregation import LeastFull, Split, Transfer, decoder
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.figures import Slo
from forebay.planning.simulate.replica import SimRequest
from forebay.planning.simulate.traces import TraceRequest
from forebay.planning.split import PhaseWork, decode_batch, split_of

DECIDE_EVERY_S = 5.0
WINDOW_S = 10.0
MAX_REQUESTS = 10_000
GAIN = 1.1
"""The split changes only if the busier pool's load falls by this factor: a change costs both pools."""


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Requests without a first token, requests that decode or wait for it, and the KV-cache tokens of the
    latter."""

    prefilling: int
    decoding: int
    context_tokens: float


class SplitPolicy(Protocol):
    """Decides the number of prefill replicas. `arrived` is called for every request, in order."""

    def arrived(self, now_s: float, prompt_tokens: int) -> None: ...

    def split(self, now_s: float, current: Split, load: PoolLoad) -> Split: ...


class RecentSplit:
    """The split at which both pools are equally busy under the present load. Deterministic; not thread-safe.

    The prefill pool must compute the prompts of the last `WINDOW_S` and the waiting ones. A decode replica is
    full with as many requests as still get a token every `tpot_s`, so the lengths of answers are not needed.
    """

    def __init__(self, engine: EngineModel, tpot_s: float) -> None:
        self._engine = engine
        self._tpot_s = tpot_s
        self._prompts: deque[tuple[float, float]] = deque(maxlen=MAX_REQUESTS)

    def arrived(self, now_s: float, prompt_tokens: int) -> None:
        self._prompts.append((now_s, self._engine.alone_s(prompt_tokens)))

    def split(self, now_s: float, current: Split, load: PoolLoad) -> Split:
        """The split to use now; `current` if the gain is too small or there is no load."""
        while self._prompts and self._prompts[0][0] < now_s - WINDOW_S:
            self._prompts.popleft()
        work_s = sum(work_s for _, work_s in self._prompts)
        waiting_s = load.prefilling * work_s / max(len(self._prompts), 1)
        context = load.context_tokens / max(load.decoding, 1)
        # Replicas that each pool keeps busy.
        busy = PhaseWork(
            (work_s + waiting_s) / WINDOW_S,
            load.decoding / decode_batch(self._engine, context, self._tpot_s),
        )
        if not busy.prefill_s + busy.decode_s:
            return current
        wanted = split_of(current.prefill + current.decode, busy)
        return wanted if _busier(current, busy) >= GAIN * _busier(wanted, busy) else current


def _busier(split: Split, work: PhaseWork) -> float:
    return max(work.prefill_s / split.prefill, work.decode_s / split.decode)


@dataclass(frozen=True, slots=True)
class Served:
    """Requests in order of arrival, as the decode pool saw them, and the changes of the split."""

    answers: list[SimRequest]
    splits: list[tuple[float, Split]]


@dataclass(frozen=True, slots=True)
class MovingPools:
    """Serves requests, starting with the split `start`. Prompts wait in order of deadline, as in
    `Admission`."""

    trace: Many[TraceRequest]
    model: EngineModel
    start: Split
    slo: Slo = field(default_factory=Slo)
    transfer: Transfer = field(default_factory=Transfer)

    def serve(self, policy: SplitPolicy) -> Served:
        """Serve all requests; `policy` decides every `DECIDE_EVERY_S` until the last has arrived.

        Raises `SettingError` for a request that fits no replica.
        """
        pools = _Pools(self.model, self.start)
        splits = [(0.0, self.start)]
        prompts = [self._prompt(index, one) for index, one in enumerate(self.trace)]
        answers: list[SimRequest] = []
        prefilling: list[SimRequest] = []
        coming: list[tuple[float, int, SimRequest]] = []
        begin, now_s = 0, 0.0
        while now_s < math.inf:
            # The last stretch has no end: no more decisions.
            now_s = now_s + DECIDE_EVERY_S if begin < len(prompts) else math.inf
            end = begin
            while end < len(prompts) and prompts[end].arrived_s < now_s:
                policy.arrived(prompts[end].arrived_s, prompts[end].prompt_tokens)
                end += 1
            pools.prefill.advance(prompts[begin:end], now_s)
            prefilling += prompts[begin:end]
            begin = end
            for prompt in prefilling:
                if prompt.first_token_s < now_s:
                    answer = self._answer(prompt)
                    heappush(coming, (answer.arrived_s, answer.index, answer))
            prefilling = [one for one in prefilling if not one.first_token_s < now_s]
            here: list[SimRequest] = []
            while coming and coming[0][0] < now_s:
                here.append(heappop(coming)[2])
            pools.decode.advance(here, now_s)
            answers += here
            if now_s < math.inf:
                wanted = policy.split(now_s, splits[-1][1], pools.load(len(prefilling)))
                if wanted != splits[-1][1]:
                    splits.append((now_s, wanted))
                pools.move(wanted)
        answers.sort(key=lambda answer: answer.index)
        return Served(answers, splits)

    def _prompt(self, index: int, one: TraceRequest) -> SimRequest:
        self.model.check(one.prompt_tokens, one.output_tokens)
        due_s = self.slo.due_s(one.arrived_s, one.prompt_tokens, self.model)
        return SimRequest(index, one.arrived_s, RoutingRequest(one.prompt_tokens, one.blocks, due_s=due_s), 1)

    def _answer(self, prompt: SimRequest) -> SimRequest:
        here_s = prompt.first_token_s + self.transfer.seconds(prompt.prompt_tokens)
        demand = replace(prompt.demand, blocks=())
        return SimRequest(prompt.index, here_s, demand, self.trace[prompt.index].output_tokens)


class _Pools:
    """Every replica is in both fleets, but available in only one, or in neither while it moves."""

    def __init__(self, model: EngineModel, start: Split) -> None:
        replicas = start.prefill + start.decode
        self._kv_tokens = model.kv_tokens
        self._prefills = [number < start.prefill for number in range(replicas)]
        first, second = [model] * replicas, [decoder(model)] * replicas
        self._first, self._second = fleet_of(first), fleet_of(second)
        for number, prefills in enumerate(self._prefills):
            self._first.set_available(number, prefills)
            self._second.set_available(number, not prefills)
        self.prefill = Simulation(first, self._first, Admission(self._first))
        self.decode = Simulation(second, self._second, ImmediateDispatcher(self._second, LeastFull()))

    def load(self, prefilling: int) -> PoolLoad:
        replicas = self.decode.replicas
        context = sum(replica.kv_usage * self._kv_tokens for replica in replicas)
        return PoolLoad(prefilling, sum(one.running + one.waiting for one in replicas), context)

    def move(self, wanted: Split) -> None:
        """Start moving the replicas with the fewest requests; idle ones switch now."""
        more = wanted.prefill - sum(self._prefills)
        source = self._second if more > 0 else self._first
        can = [number for number, prefills in enumerate(self._prefills) if prefills == (more < 0)]
        # A replica that is still moving back has nothing to finish.
        can.sort(key=lambda number: (bool(source.available[number]), float(source.requests[number]), number))
        for number in can[: abs(more)]:
            self._prefills[number] = more > 0
            source.set_available(number, False)
        for number, prefills in enumerate(self._prefills):
            into, out = (self._first, self._second) if prefills else (self._second, self._first)
            if not into.available[number] and _idle(out, number):
                into.set_available(number, True)


def _idle(fleet: ReplicaTable, number: int) -> bool:
    return float(fleet.requests[number]) == 0
