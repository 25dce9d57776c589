"""A request, and the simulated replica that serves it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from math import nan

from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate.engine import EngineModel, PrefixCache


class SimRequest:
    """Times are simulated seconds, or NaN. `hit_tokens` of the prompt were cached at its first admission."""

    __slots__ = (
        "arrived_s",
        "blocks",
        "demand",
        "finish_step",
        "finished_s",
        "first_token_s",
        "generated",
        "hit_tokens",
        "index",
        "output_tokens",
        "preemptions",
        "prefilled",
        "prompt_tokens",
        "replica",
        "residue",
        "target",
    )

    def __init__(self, index: int, arrived_s: float, demand: RoutingRequest, output_tokens: int) -> None:
        self.index = index
        self.arrived_s = arrived_s
        self.demand = demand
        self.prompt_tokens = demand.prompt_tokens
        self.blocks = demand.blocks
        self.output_tokens = output_tokens
        self.replica = -1
        self.hit_tokens = 0
        self.preemptions = 0
        self.first_token_s = nan
        self.finished_s = nan
        # While it runs: tokens generated; tokens computed of `target`, those to compute before the next is
        # generated; the step that generates the last one; at which steps it needs one more unit.
        self.generated = 0
        self.prefilled = 0
        self.target = 0
        self.finish_step = -1
        self.residue = 0


class SimulatedReplica:
    """One replica in simulated time, with vLLM's scheduler (V1).

    A step decodes a token of each sequence and gives the rest of its budget to prompts in order. A prompt is
    admitted only if its whole KV fits. The last admitted is preempted if memory runs short.

    Call `submit` in order of time and `fire` at `next_s`, `submit` first if both are due.
    """

    __slots__ = (
        "_cache",
        "_chunks",
        "_context",
        "_decoding",
        "_finishing",
        "_growth",
        "_interruptible",
        "_model",
        "_now_s",
        "_partial",
        "_private",
        "_run_steps",
        "_running",
        "_step",
        "_waiting",
        "busy_s",
        "next_s",
        "preemptions",
    )

    def __init__(self, model: EngineModel) -> None:
        self._model = model
        self._cache = PrefixCache()
        self._waiting: deque[SimRequest] = deque()
        self._running: dict[SimRequest, None] = {}
        self._partial: SimRequest | None = None
        self._now_s = 0.0
        self._step = 0
        # Sequences that decode: how many, tokens in their KV, and which one finishes at which step.
        self._decoding = 0
        self._context = 0
        self._finishing: list[tuple[int, int, SimRequest]] = []
        # Units beyond shared blocks, and how many sequences need one more at a step of each residue.
        self._private = 0
        self._growth = [0] * model.unit_tokens
        self._run_steps = 0
        self._chunks: list[tuple[SimRequest, int]] = []
        self._interruptible = False
        self.next_s = math.inf
        self.busy_s = 0.0
        self.preemptions = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return self._used() / self._model.units

    def submit(self, sequence: SimRequest, now_s: float) -> None:
        self._waiting.append(sequence)
        if self.next_s == math.inf:
            # A run of no steps: requests that arrive at the same time share the first step.
            self._now_s = self.next_s = now_s
            self._run_steps = 0
        elif self._interruptible:
            self._cut_run(now_s)

    def fire(self, first: list[SimRequest], finished: list[SimRequest]) -> None:
        """End the run that is due at `next_s` and begin the next one; appends to both lists."""
        steps, n = self._run_steps, self._decoding
        self.busy_s += self.next_s - self._now_s
        now_s = self._now_s = self.next_s
        if n:
            self._private += self._grown(steps)
            self._context += n * steps
            if self._cache.idle:
                self._make_room(0)
        step = self._step = self._step + steps
        finishing = self._finishing
        while finishing and finishing[0][0] <= step:
            due, _, done = heappop(finishing)
            if done.finish_step == due:  # else it was preempted since
                done.generated = done.output_tokens
                self._decoding -= 1
                self._context -= done.prompt_tokens + done.output_tokens
                self._growth[done.residue] -= 1
                self._leave(done, done.prompt_tokens + done.output_tokens - 1)
                done.finished_s = now_s
                finished.append(done)
        if self._chunks:
            self._end_chunks(first, finished)
        self._plan()

    def _end_chunks(self, first: list[SimRequest], finished: list[SimRequest]) -> None:
        self._partial = None
        now_s, step, unit = self._now_s, self._step, self._model.unit_tokens
        for sequence, tokens in self._chunks:
            sequence.prefilled += tokens
            if sequence.prefilled < sequence.target:
                self._partial = sequence
                continue
            sequence.generated += 1
            if sequence.generated == 1:
                sequence.first_token_s = now_s
                first.append(sequence)
            left = sequence.output_tokens - sequence.generated
            if left == 0:
                self._leave(sequence, sequence.target)
                sequence.finished_s = now_s
                finished.append(sequence)
                continue
            self._decoding += 1
            self._context += sequence.target + 1
            sequence.finish_step = step + left
            sequence.residue = (1 + step - sequence.target) % unit
            self._growth[sequence.residue] += 1
            heappush(self._finishing, (sequence.finish_step, sequence.index, sequence))
        self._chunks = []

    def _plan(self) -> None:
        model = self._model
        unit = model.unit_tokens
        preempted = False
        if self._used() + self._growth[(self._step + 1) % unit] > model.units:
            self._preempt()
            preempted = True
        time, n = model.step_time, self._decoding
        budget = model.max_num_batched_tokens - n
        partial = self._partial
        self._interruptible = False
        if partial is not None:
            left = partial.target - partial.prefilled
            if left > budget:
                steps = self._alike((left - 1) // budget)
                self._chunks = [(partial, steps * budget)]
                took_s = time.prefill_run_s(steps, budget, partial.prefilled)
                self._begin(steps, took_s)
                return
            self._chunks.append((partial, left))
            budget -= left
        if self._waiting and not preempted:
            self._admit(budget)
        if self._chunks:
            tokens, pairs = 0, 0.0
            for sequence, chunk in self._chunks:
                tokens += chunk
                pairs += chunk * (sequence.prefilled + chunk / 2)
            took_s = time.prefill_step_s + tokens * time.prefill_s + pairs * time.attention_s
            self._begin(1, took_s)
        elif n:
            self._interruptible = not self._waiting and len(self._running) < model.max_num_seqs
            # The preempted sequence needs at least what it freed: only a finish makes room for it.
            steps = self._finishing[0][0] - self._step
            self._begin(self._alike(steps), 0.0)
        else:
            self.next_s = math.inf

    def _begin(self, steps: int, prefill_s: float) -> None:
        self._run_steps = steps
        decode_s = self._model.step_time.decode_run_s(steps, self._decoding, self._context)
        self.next_s = self._now_s + (decode_s + prefill_s)

    def _cut_run(self, now_s: float) -> None:
        time, n, context = self._model.step_time, self._decoding, self._context
        slope = time.context_s * n / 2
        first_s = time.step_s + n * time.decode_s + time.context_s * context
        passed_s = now_s - self._now_s
        # steps · first + slope · steps · (steps − 1) = passed, solved for the steps.
        half = (first_s - slope) / 2
        steps = math.ceil(passed_s / (half + math.sqrt(half * half + slope * passed_s)))
        steps = min(max(steps, 1), self._run_steps)
        while steps > 1 and self._now_s + time.decode_run_s(steps - 1, n, context) >= now_s:
            steps -= 1
        while steps < self._run_steps and self._now_s + time.decode_run_s(steps, n, context) < now_s:
            steps += 1
        self._interruptible = False
        self._begin(steps, 0.0)

    def _admit(self, budget: int) -> None:
        model, cache, waiting = self._model, self._cache, self._waiting
        reserved = self._growth[(self._step + 1) % model.unit_tokens]
        self._make_room(reserved)
        while waiting and budget and len(self._running) < model.max_num_seqs:
            sequence = waiting[0]
            blocks = sequence.blocks
            target = sequence.prompt_tokens + sequence.generated
            hits, unused = cache.match(blocks) if blocks else (0, 0)
            tail = -(-target // model.unit_tokens) - len(blocks) * model.block_units
            if self._used() + reserved + unused * model.block_units + tail > model.units:
                break
            waiting.popleft()
            # At least one token is computed: it takes a step to generate the next.
            hits = min(hits, (target - 1) // model.block_tokens)
            if blocks:
                cache.pin(blocks)
            self._private += tail
            self._make_room(reserved)
            sequence.prefilled = hits * model.block_tokens
            sequence.target = target
            if not sequence.generated:
                sequence.hit_tokens = sequence.prefilled
            self._running[sequence] = None
            chunk = min(target - sequence.prefilled, budget)
            self._chunks.append((sequence, chunk))
            budget -= chunk

    def _preempt(self) -> None:
        model, residue = self._model, (self._step + 1) % self._model.unit_tokens
        while self._used() + self._growth[residue] > model.units and len(self._running) > 1:
            self._cache.evict(len(self._cache.idle))
            sequence = next(reversed(self._running))
            if sequence is self._partial:
                self._partial = None
                units = sequence.target
            else:
                sequence.generated = sequence.output_tokens - (sequence.finish_step - self._step)
                units = sequence.prompt_tokens + sequence.generated - 1
                self._decoding -= 1
                self._context -= units + 1
                self._growth[sequence.residue] -= 1
                sequence.finish_step = -1
                sequence.prefilled = units
            self._leave(sequence, units)
            sequence.preemptions += 1
            self.preemptions += 1
            self._waiting.appendleft(sequence)

    def _leave(self, sequence: SimRequest, kv_tokens: int) -> None:
        model, blocks = self._model, sequence.blocks
        del self._running[sequence]
        self._private -= -(-kv_tokens // model.unit_tokens) - len(blocks) * model.block_units
        if blocks:
            self._cache.unpin(blocks, sequence.prefilled // model.block_tokens)

    def _used(self) -> int:
        return len(self._cache.users) * self._model.block_units + self._private

    def _make_room(self, reserved: int) -> None:
        model, cache = self._model, self._cache
        kept = (len(cache.users) + len(cache.idle)) * model.block_units
        free = model.units - reserved - self._private - kept
        if free < 0:
            cache.evict(-(free // model.block_units))

    def _grown(self, steps: int) -> int:
        growth = self._growth
        unit = len(growth)
        whole, rest = divmod(steps, unit)
        start = (self._step + 1) % unit
        grown = self._decoding * whole
        if start + rest <= unit:
            return grown + sum(growth[start : start + rest])
        return grown + sum(growth[start:]) + sum(growth[: start + rest - unit])

    def _alike(self, steps: int) -> int:
        if self._finishing:
            steps = min(steps, self._finishing[0][0] - self._step)
        room = self._model.units - self._used()
        if self._decoding * (steps // self._model.unit_tokens + 1) > room:
            low, high = 1, steps
            while low < high:
                middle = (low + high + 1) // 2
                if self._grown(middle) <= room:
                    low = middle
                else:
                    high = middle - 1
            steps = low
        return steps


def serve(replica: SimulatedReplica, requests: Iterable[SimRequest]) -> list[SimRequest]:
    """`requests` are ordered by arrival, the result by end."""
    first: list[SimRequest] = []
    finished: list[SimRequest] = []
    for request in requests:
        while replica.next_s < request.arrived_s:
            replica.fire(first, finished)
        replica.submit(request, request.arrived_s)
    while replica.next_s < math.inf:
        replica.fire(first, finished)
    return finished
