"""The load of replicas as one router sees it: its own requests, corrected by reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from forebay.fleet.prefix_index import PrefixIndex
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest, Vector
from forebay.fleet.speed import PrefillSamples, PrefillSpeed, SpeedFit, features
from forebay.records import ReplicaLoad

FADE = 1 / 20
STEP_FADE = 1 / 100
"""How far one faster request lowers the step length."""
MAX_BLOCKS = 1_000_000
DEFAULT_BLOCKS = 100_000
STALE_S = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Limits of one replica; infinite if unknown. `name` is stable over restarts."""

    name: str
    kv_tokens: float = math.inf
    max_num_seqs: float = math.inf


def column(new: float = 0.0) -> Vector:
    return np.array([new])


class ReplicaTable:
    """The replicas of a fleet, one vector a column, so that decisions over a thousand replicas are fast.

    Own requests count at once when they are taken; fresh reports add those of others. Belongs to one event
    loop.
    """

    kv_tokens = column(math.inf)
    max_num_seqs = column(math.inf)
    requests = column()
    decoding = column()
    context = column()
    prompts = column()
    reserved = column()
    """Tokens that own requests add to the KV cache."""
    prefill_tokens = column()
    head_until_s = column()
    """When the first prefill in the queue should end."""
    behind_s = column()
    busy = column()
    pace = column(1.0)
    """Learned: how many times slower it is than `SpeedFit`."""
    hold_s = column(math.inf)
    """Learned: how much prefill keeps it full."""
    waiting = column()
    prefill_slots = column()
    """Requests without a first token that are allowed whatever their prefill; set by the caller."""
    window = column(math.inf)
    """How many requests are allowed; set by the caller."""
    limit = column(math.inf)
    reported_waiting = column()
    reported_kv = column()
    reported_s = column(-math.inf)
    external = column()
    """Reported requests that are not ours."""
    external_s = column()

    def __init__(
        self,
        replicas: Sequence[ReplicaLimits] = (),
        *,
        block_tokens: int = 512,
        speed: PrefillSpeed | None = None,
        work_s: float = 0.0,
    ) -> None:
        """`block_tokens`: block size in demands; `work_s`: assumed prefill time of others' requests."""
        self.count = 0
        self.names: list[str] = []
        self.block_tokens: float = block_tokens
        self.available = np.ones(0, bool)
        self.all_available = True
        self.index = PrefixIndex([])
        self.fit = SpeedFit(speed)
        self.changed: set[int] = set()
        """Replicas whose queue or room changed other than by `take`; the reader empties it."""
        self.answer_s = 1.0
        self.nothing: Vector = np.zeros(0)
        self._output_tokens = 0.0
        self._work_s = work_s
        self._prefills: list[PrefillSamples] = []
        self._free: list[int] = []
        self._set_values(np.empty((len(COLUMNS), 0)))
        for replica in replicas:
            self.add(replica)
        self.changed.clear()

    def add(self, replica: ReplicaLimits) -> int:
        number = self._free.pop() if self._free else self._grow()
        self.names[number] = replica.name
        self.kv_tokens[number] = replica.kv_tokens
        self.max_num_seqs[number] = replica.max_num_seqs
        self.index.resize(number, self._cached_blocks(replica))
        self.set_available(number, True)
        return number

    def remove(self, replica: int) -> None:
        """Raises `ValueError` while it has own requests: take it out of use first."""
        if self.requests[replica]:
            raise ValueError(f"{self.names[replica]} has {int(self.requests[replica])} requests in flight")
        self.set_available(replica, False)
        self.index.clear(replica)
        self._values[:, replica] = NEW_ROW
        self._prefills[replica] = PrefillSamples()
        self._free.append(replica)

    def _grow(self) -> int:
        number = self.count
        self.count += 1
        values = np.empty((len(COLUMNS), self.count))
        values[:, :number], values[:, number] = self._values, NEW_ROW
        self._set_values(values)
        self.available = np.append(self.available, False)
        self.nothing = np.zeros(self.count)
        self.names.append("")
        self.index.grow()
        self._prefills.append(PrefillSamples())
        return number

    def _set_values(self, values: Vector) -> None:
        self._values = values
        for name, vector in zip(COLUMNS, values, strict=True):
            setattr(self, name, vector)

    def _cached_blocks(self, replica: ReplicaLimits) -> int:
        if math.isinf(replica.kv_tokens):
            return DEFAULT_BLOCKS
        return min(int(replica.kv_tokens / self.block_tokens), MAX_BLOCKS)

    def numbers(self) -> Sequence[int]:
        return range(self.count) if self.all_available else self.available.nonzero()[0].tolist()

    def set_available(self, replica: int, available: bool) -> None:
        self.available[replica] = available
        self.changed.add(replica)
        self.all_available = bool(self.available.all())

    def set_room(self, replica: int, window: float, prefill_slots: float) -> None:
        if self.window[replica] != window or self.prefill_slots[replica] != prefill_slots:
            self.window[replica], self.prefill_slots[replica] = window, prefill_slots
            self.changed.add(replica)

    @contextmanager
    def without(self, replicas: Sequence[int]) -> Iterator[None]:
        if not replicas:
            yield
            return
        before, all_before = self.available, self.all_available
        left = before.copy()
        left[[replica for replica in replicas if replica < self.count]] = False
        if left.any():
            self.available, self.all_available = left, False
        try:
            yield
        finally:
            self.available, self.all_available = before, all_before

    @contextmanager
    def only(self, replicas: Sequence[int]) -> Iterator[None]:
        others = self.available.copy()
        others[list(replicas)] = False
        if not others.any():
            yield
            return
        self.available, self.all_available = self.available & ~others, False
        try:
            yield
        finally:
            self.available = self.available | others
            self.all_available = bool(self.available.all())

    def cached(self, demand: RoutingRequest) -> Vector:
        if demand.transferred:
            return self.nothing + demand.prompt_tokens
        if not demand.blocks:
            return self.nothing
        return self.index.match(demand.blocks) * self.block_tokens

    def take(self, replica: int, demand: RoutingRequest, cached: Vector, now_s: float) -> InFlightRequest:
        prompt = demand.prompt_tokens
        request = InFlightRequest(replica, prompt, now_s)
        uncached = request.uncached = max(1.0, prompt - float(cached[replica]))
        request.reserved = (prompt if demand.transferred else uncached) + self._output_tokens
        request.terms = features(
            uncached, prompt, float(self.decoding[replica]), float(self.context[replica])
        )
        work_s = request.work_s = self.fit.speed.seconds(request.terms) * float(self.pace[replica])
        queue = self._prefills[replica].queue
        if queue:
            self.behind_s[replica] += work_s
        else:
            self.busy[replica] = 1.0
            self.head_until_s[replica] = now_s + work_s
        queue.append(request)
        self.waiting[replica] += 1
        self.requests[replica] += 1
        self.prompts[replica] += prompt
        self.reserved[replica] += request.reserved
        self.prefill_tokens[replica] += uncached
        if demand.blocks:
            self.index.insert(replica, demand.blocks)
        if self.requests[replica] >= self.limit[replica]:
            self.set_available(replica, False)
        return request

    def first_token(self, request: InFlightRequest, now_s: float) -> None:
        request.first_token_s = now_s
        self._sample(request, now_s)
        self._begin_decoding(request, now_s)

    def assume_first_token(self, request: InFlightRequest, now_s: float) -> None:
        request.first_token_s = now_s
        self._begin_decoding(request, now_s)

    def _begin_decoding(self, request: InFlightRequest, now_s: float) -> None:
        replica = request.replica
        self._leave_queue(request, now_s)
        self.changed.add(replica)
        self.decoding[replica] += 1
        self.context[replica] += request.prompt_tokens

    def finish(self, request: InFlightRequest, now_s: float, output_tokens: int = 0) -> None:
        replica = request.replica
        if math.isnan(request.first_token_s):
            self._leave_queue(request, now_s)
        else:
            self.decoding[replica] -= 1
            self.context[replica] -= request.prompt_tokens
            answer_s = now_s - request.first_token_s
            self.answer_s += (answer_s - self.answer_s) * FADE
            if output_tokens > 1:
                self._learn_step(replica, answer_s / (output_tokens - 1))
            self._output_tokens += (output_tokens - self._output_tokens) * FADE
        self.changed.add(replica)
        self.requests[replica] -= 1
        self.prompts[replica] -= request.prompt_tokens
        self.reserved[replica] -= request.reserved

    def queued_s(self, replica: int) -> float:
        queue = self._prefills[replica].queue
        return queue[0].work_s + float(self.behind_s[replica]) if queue else 0.0

    def claimed_s(self, replica: int, waiting: float) -> float:
        external = max(0.0, waiting - len(self._prefills[replica].queue))
        return external * self._work_s * float(self.pace[replica])

    def report(self, replica: int, load: ReplicaLoad) -> None:
        if load.observed_s < self.reported_s[replica]:
            return
        waiting, running = load.waiting or 0.0, load.running or 0.0
        self.changed.add(replica)
        self.reported_s[replica] = load.observed_s
        self.reported_waiting[replica] = waiting
        self.reported_kv[replica] = load.kv_cache_usage or 0.0
        self.external[replica] = max(0.0, running + waiting - float(self.requests[replica]))
        self.external_s[replica] = self.claimed_s(replica, waiting)

    def forget_stale_reports(self, now_s: float) -> None:
        stale = self.reported_s < now_s - STALE_S
        for values in (self.reported_waiting, self.reported_kv, self.external, self.external_s):
            values[stale] = 0.0
        self.changed.update(stale.nonzero()[0].tolist())

    def restarted(self, replica: int) -> None:
        self.index.clear(replica)

    def _less_behind(self, replica: int, work_s: float) -> None:
        # Never below 0 through rounding.
        self.behind_s[replica] = max(0.0, float(self.behind_s[replica]) - work_s)

    def _leave_queue(self, request: InFlightRequest, now_s: float) -> None:
        replica = request.replica
        queue = self._prefills[replica].queue
        self.prefill_tokens[replica] -= request.uncached
        self.waiting[replica] -= 1
        if queue[0] is request:
            queue.popleft()
            if queue:
                # The next one is the head from now on.
                work_s = queue[0].work_s
                self._less_behind(replica, work_s)
                self.head_until_s[replica] = now_s + work_s
        else:
            queue.remove(request)
            self._less_behind(replica, request.work_s)
            if not math.isnan(request.first_token_s):
                # It overtook the head: the replica works and is not late with the head.
                self.head_until_s[replica] = max(float(self.head_until_s[replica]), now_s)
        if not queue:
            self.busy[replica] = self.behind_s[replica] = 0.0

    def _sample(self, request: InFlightRequest, now_s: float) -> None:
        replica = request.replica
        prefills = self._prefills[replica]
        began_s, ended_s, terms = prefills.sample
        if now_s == ended_s and terms:
            prefills.sample = (began_s, ended_s, tuple(map(float.__add__, terms, request.terms)))
            return
        if terms:
            self._learn_speed(replica, ended_s - began_s, terms)
        prefills.sample = (max(ended_s, request.sent_s), now_s, request.terms)

    def _learn_speed(self, replica: int, seconds: float, terms: tuple[float, ...]) -> None:
        prefills, predicted_s = self._prefills[replica], self.fit.speed.seconds(terms)
        prefills.observed_s = prefills.observed_s * (1 - FADE) + seconds
        prefills.predicted_s = prefills.predicted_s * (1 - FADE) + predicted_s
        pace = prefills.observed_s / prefills.predicted_s
        self.pace[replica] = pace
        self.fit.add(seconds / pace, terms)
        self._work_s += (predicted_s / terms[0] - self._work_s) * FADE
        if not prefills.knows_step:
            # Answers of one token show no steps; the time between first tokens is the next best.
            hold_s = float(self.hold_s[replica])
            self.hold_s[replica] = seconds if hold_s == math.inf else hold_s + (seconds - hold_s) * FADE

    def _learn_step(self, replica: int, tpot_s: float) -> None:
        """Learn from a request's mean time between tokens: at most one full step, and nearly one during
        prefills.
        """
        prefills, hold_s = self._prefills[replica], float(self.hold_s[replica])
        if tpot_s > hold_s or not prefills.knows_step:
            self.hold_s[replica] = tpot_s
        else:
            self.hold_s[replica] = hold_s + (tpot_s - hold_s) * STEP_FADE
        prefills.knows_step = True


COLUMNS = {name: value for name, value in vars(ReplicaTable).items() if isinstance(value, np.ndarray)}
NEW_ROW: Vector = np.concatenate(list(COLUMNS.values()))
