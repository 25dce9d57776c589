"""The load of replicas as one router sees it: its own requests, corrected by reports."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from forebay.fleet.prefix_index import PrefixIndex
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest, Vector
from forebay.fleet.speed import PrefillSpeed, SpeedFit, features
from forebay.records import ReplicaLoad

FADE = 1 / 20
"""Weight of the newest sample in pace and mean lengths: the last few dozen requests count."""
STEP_FADE = 1 / 100
"""How far one faster request lowers the step length."""
MOST_BLOCKS = 1_000_000
"""The most blocks remembered per replica, whatever cache size it reports."""
STALE_S = 10.0
"""Age at which a load report expires: ten scrapes missed at one a second."""


ROW: dict[str, float] = {
    "kv_tokens": math.inf,
    "max_num_seqs": math.inf,
    "requests": 0.0,
    "decoding": 0.0,
    "context": 0.0,
    "prompts": 0.0,
    "reserved": 0.0,
    "prefill_tokens": 0.0,
    "head_until_s": 0.0,
    "behind_s": 0.0,
    "busy": 0.0,
    "pace": 1.0,
    "hold_s": math.inf,
    "waiting": 0.0,
    "beside": 0.0,
    "window": math.inf,
    "limit": math.inf,
    "reported_waiting": 0.0,
    "reported_kv": 0.0,
    "reported_s": -math.inf,
    "external": 0.0,
    "external_s": 0.0,
}
"""The vectors of a fleet, and their values for a new replica."""


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Limits of one replica.

    `kv_tokens` (size of the KV cache) and `max_num_seqs` (requests it runs) are infinite if unknown. `name`
    is unique in a fleet and stable over restarts.
    """

    name: str
    kv_tokens: float = math.inf
    max_num_seqs: float = math.inf


class Fleet:
    """Replicas as one vector per quantity, so that decisions over a thousand of them are fast.

    Own requests count at once when they are taken; fresh reports add the requests of others. Not thread-safe:
    one event loop owns a fleet.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaLimits],
        *,
        block_tokens: int = 512,
        index_blocks: int = 100_000,
        speed: PrefillSpeed | None = None,
        work_s: float = 0.0,
    ) -> None:
        """`block_tokens` is the size of the blocks in demands; `index_blocks`, how many are remembered for a
        replica of unknown cache size. `work_s` is the assumed prefill time of others' requests until own
        first tokens show it."""
        count = len(replicas)
        self.count = count
        self.names = [replica.name for replica in replicas]
        self.block_tokens: float = block_tokens
        self._index_blocks = index_blocks
        self.kv_tokens: Vector = np.array([float(replica.kv_tokens) for replica in replicas])
        self.max_num_seqs: Vector = np.array([float(replica.max_num_seqs) for replica in replicas])
        self.available = np.ones(count, bool)
        self.all_available = True
        self.index = PrefixIndex([self._cached_blocks(replica) for replica in replicas])
        self.fit = SpeedFit(speed)
        # Own requests: all, those that decode and the tokens of their prompts; tokens of all prompts, and
        # those they add to the KV cache; tokens to prefill of those without a first token.
        self.requests: Vector = np.zeros(count)
        self.decoding: Vector = np.zeros(count)
        self.context: Vector = np.zeros(count)
        self.prompts: Vector = np.zeros(count)
        self.reserved: Vector = np.zeros(count)
        self.prefill_tokens: Vector = np.zeros(count)
        # Prefill work: when the first in the queue should end, seconds behind it, and 1 if any.
        self.head_until_s: Vector = np.zeros(count)
        self.behind_s: Vector = np.zeros(count)
        self.busy: Vector = np.zeros(count)
        # Learned: how many times slower than the fitted speed; how much prefill keeps it full.
        self.pace: Vector = np.ones(count)
        self.hold_s: Vector = np.full(count, math.inf)
        # Own requests without a first token; how many of them are allowed whatever their prefill; how many
        # requests are allowed at all. The caller sets the last two.
        self.waiting: Vector = np.zeros(count)
        self.beside: Vector = np.zeros(count)
        self.window: Vector = np.full(count, math.inf)
        # How many own requests make it unavailable; set by a slow start.
        self.limit: Vector = np.full(count, math.inf)
        # Reported, and the part that is not ours: requests, and seconds of their prefill.
        self.reported_waiting: Vector = np.zeros(count)
        self.reported_kv: Vector = np.zeros(count)
        self.reported_s: Vector = np.full(count, -math.inf)
        self.external: Vector = np.zeros(count)
        self.external_s: Vector = np.zeros(count)
        self.changed: set[int] = set()
        """Replicas whose queue or room changed other than by `take`; the reader empties it."""
        self._queues: list[deque[InFlightRequest]] = [deque() for _ in replicas]
        self._observed = [1.0] * count
        self._predicted = [1.0] * count
        self._knows_step = [False] * count
        self._samples: list[tuple[float, float, tuple[float, ...]]] = [(0.0, 0.0, ())] * count
        self._output_tokens = 0.0
        self.answer_s = 1.0
        """Mean time from first token to end of an answer."""
        self._work_s = work_s
        self.nothing: Vector = np.zeros(count)
        self._free: list[int] = []

    def add(self, replica: ReplicaLimits) -> int:
        """Add a replica; returns its number, perhaps that of one that has left."""
        number = self._free.pop() if self._free else self._grow()
        self.names[number] = replica.name
        self.kv_tokens[number] = replica.kv_tokens
        self.max_num_seqs[number] = replica.max_num_seqs
        self.index.resize(number, self._cached_blocks(replica))
        self.set_available(number, True)
        return number

    def remove(self, replica: int) -> None:
        """Remove a replica. Raises `ValueError` while it has own requests: take it out of use first."""
        if self.requests[replica]:
            raise ValueError(f"{self.names[replica]} has {int(self.requests[replica])} requests in flight")
        self.set_available(replica, False)
        self.index.clear(replica)
        for name, start in ROW.items():
            getattr(self, name)[replica] = start
        self._observed[replica] = self._predicted[replica] = 1.0
        self._knows_step[replica] = False
        self._samples[replica] = (0.0, 0.0, ())
        self._free.append(replica)

    def _grow(self) -> int:
        number = self.count
        self.count += 1
        for name, start in ROW.items():
            setattr(self, name, np.append(getattr(self, name), start))
        self.available = np.append(self.available, False)
        self.nothing = np.zeros(self.count)
        self.names.append("")
        self.index.grow()
        self._queues.append(deque())
        self._observed.append(1.0)
        self._predicted.append(1.0)
        self._knows_step.append(False)
        self._samples.append((0.0, 0.0, ()))
        return number

    def _cached_blocks(self, replica: ReplicaLimits) -> int:
        if math.isinf(replica.kv_tokens):
            return self._index_blocks
        return min(int(replica.kv_tokens / self.block_tokens), MOST_BLOCKS)

    def numbers(self) -> Sequence[int]:
        """The available replicas."""
        return range(self.count) if self.all_available else self.available.nonzero()[0].tolist()

    def set_available(self, replica: int, available: bool) -> None:
        """Set whether new requests may be sent to this replica."""
        self.available[replica] = available
        self.changed.add(replica)
        self.all_available = bool(self.available.all())

    def set_room(self, replica: int, window: float, beside: float) -> None:
        """Set how many requests this replica may have, and how many without a first token in any case."""
        if self.window[replica] != window or self.beside[replica] != beside:
            self.window[replica], self.beside[replica] = window, beside
            self.changed.add(replica)

    @contextmanager
    def without(self, replicas: Sequence[int]) -> Iterator[None]:
        """Make these unavailable within the block, unless no other is available."""
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
        """Make all others unavailable within the block. Changes to these last."""
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
        """For each replica, how many of the prompt's tokens are cached there or transferred."""
        if demand.transferred:
            return self.nothing + demand.prompt_tokens
        if not demand.blocks:
            return self.nothing
        return self.index.match(demand.blocks) * self.block_tokens

    def take(self, replica: int, demand: RoutingRequest, cached: Vector, now_s: float) -> InFlightRequest:
        """Count a request that is sent to this replica now."""
        prompt = demand.prompt_tokens
        ticket = InFlightRequest(replica, prompt, now_s)
        uncached = ticket.uncached = max(1.0, prompt - float(cached[replica]))
        ticket.reserved = (prompt if demand.transferred else uncached) + self._output_tokens
        ticket.terms = features(uncached, prompt, float(self.decoding[replica]), float(self.context[replica]))
        work_s = ticket.work_s = self.fit.speed.seconds(ticket.terms) * float(self.pace[replica])
        queue = self._queues[replica]
        if queue:
            self.behind_s[replica] += work_s
        else:
            self.busy[replica] = 1.0
            self.head_until_s[replica] = now_s + work_s
        queue.append(ticket)
        self.waiting[replica] += 1
        self.requests[replica] += 1
        self.prompts[replica] += prompt
        self.reserved[replica] += ticket.reserved
        self.prefill_tokens[replica] += uncached
        if demand.blocks:
            self.index.insert(replica, demand.blocks)
        if self.requests[replica] >= self.limit[replica]:
            self.set_available(replica, False)
        return ticket

    def first_token(self, ticket: InFlightRequest, now_s: float) -> None:
        """Count the first token of a request."""
        ticket.first_token_s = now_s
        self._sample(ticket, now_s)
        self._begin_decoding(ticket, now_s)

    def assume_first_token(self, ticket: InFlightRequest, now_s: float) -> None:
        """Assume the first token, which nobody sees; nothing is learned."""
        ticket.first_token_s = now_s
        self._begin_decoding(ticket, now_s)

    def _begin_decoding(self, ticket: InFlightRequest, now_s: float) -> None:
        replica = ticket.replica
        self._leave_queue(ticket, now_s)
        self.changed.add(replica)
        self.decoding[replica] += 1
        self.context[replica] += ticket.prompt_tokens

    def finish(self, ticket: InFlightRequest, now_s: float, output_tokens: int = 0) -> None:
        """Count the end of a request; `output_tokens` is 0 without an answer."""
        replica = ticket.replica
        if math.isnan(ticket.first_token_s):
            self._leave_queue(ticket, now_s)
        else:
            self.decoding[replica] -= 1
            self.context[replica] -= ticket.prompt_tokens
            answer_s = now_s - ticket.first_token_s
            self.answer_s += (answer_s - self.answer_s) * FADE
            if output_tokens > 1:
                self._learn_step(replica, answer_s / (output_tokens - 1))
            self._output_tokens += (output_tokens - self._output_tokens) * FADE
        self.changed.add(replica)
        self.requests[replica] -= 1
        self.prompts[replica] -= ticket.prompt_tokens
        self.reserved[replica] -= ticket.reserved

    def queued_s(self, replica: int) -> float:
        """The expected prefill time of its own requests without a first token."""
        return sum(ticket.work_s for ticket in self._queues[replica])

    def claimed_s(self, replica: int, waiting: float) -> float:
        """The prefill time of those of `waiting` requests that are not ours."""
        external = max(0.0, waiting - len(self._queues[replica]))
        return external * self._work_s * float(self.pace[replica])

    def report(self, replica: int, load: ReplicaLoad) -> None:
        """Take a report of load, unless it is older than the last."""
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
        """Drop reports older than `STALE_S`; our own requests remain."""
        stale = self.reported_s < now_s - STALE_S
        for values in (self.reported_waiting, self.reported_kv, self.external, self.external_s):
            values[stale] = 0.0
        self.changed.update(stale.nonzero()[0].tolist())

    def restarted(self, replica: int) -> None:
        """Note that the replica has lost its prefix cache."""
        self.index.clear(replica)

    def _less_behind(self, replica: int, work_s: float) -> None:
        # Never below 0 through rounding.
        self.behind_s[replica] = max(0.0, float(self.behind_s[replica]) - work_s)

    def _leave_queue(self, ticket: InFlightRequest, now_s: float) -> None:
        replica = ticket.replica
        queue = self._queues[replica]
        self.prefill_tokens[replica] -= ticket.uncached
        self.waiting[replica] -= 1
        if queue[0] is ticket:
            queue.popleft()
            if queue:
                # The next one is the head from now on.
                work_s = queue[0].work_s
                self._less_behind(replica, work_s)
                self.head_until_s[replica] = now_s + work_s
        else:
            queue.remove(ticket)
            self._less_behind(replica, ticket.work_s)
            if not math.isnan(ticket.first_token_s):
                # It overtook the head: the replica works and is not late with the head.
                self.head_until_s[replica] = max(float(self.head_until_s[replica]), now_s)
        if not queue:
            self.busy[replica] = self.behind_s[replica] = 0.0

    def _sample(self, ticket: InFlightRequest, now_s: float) -> None:
        """Learn from the time between two first tokens; those of one step share one sample."""
        replica = ticket.replica
        began_s, ended_s, terms = self._samples[replica]
        if now_s == ended_s and terms:
            summed = tuple(map(float.__add__, terms, ticket.terms))
            self._samples[replica] = (began_s, ended_s, summed)
            return
        if terms:
            self._learn_speed(replica, ended_s - began_s, terms)
        self._samples[replica] = (max(ended_s, ticket.sent_s), now_s, ticket.terms)

    def _learn_speed(self, replica: int, seconds: float, terms: tuple[float, ...]) -> None:
        predicted_s = self.fit.speed.seconds(terms)
        observed = self._observed[replica] = self._observed[replica] * (1 - FADE) + seconds
        predicted = self._predicted[replica] = self._predicted[replica] * (1 - FADE) + predicted_s
        pace = observed / predicted
        self.pace[replica] = pace
        self.fit.add(seconds / pace, terms)
        self._work_s += (predicted_s / terms[0] - self._work_s) * FADE
        if not self._knows_step[replica]:
            # Answers of one token show no steps; the time between first tokens is the next best.
            hold_s = float(self.hold_s[replica])
            self.hold_s[replica] = seconds if hold_s == math.inf else hold_s + (seconds - hold_s) * FADE

    def _learn_step(self, replica: int, tpot_s: float) -> None:
        """Learn from a request's mean time between tokens: at most one full step, and nearly one while
        prompts come."""
        hold_s = float(self.hold_s[replica])
        if tpot_s > hold_s or not self._knows_step[replica]:
            self.hold_s[replica] = tpot_s
        else:
            self.hold_s[replica] = hold_s + (tpot_s - hold_s) * STEP_FADE
        self._knows_step[replica] = True
