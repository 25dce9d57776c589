"""The simplest scheduler with the same rules, token by token: the reference for the fast replica."""

from __future__ import annotations

from collections import OrderedDict

from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.replica import SimRequest


class _Running:
    def __init__(self, sequence: SimRequest, target: int, computed: int) -> None:
        self.sequence = sequence
        self.target = target  # tokens to compute before the next one is generated
        self.computed = computed
        self.decoding = False

    def kv_tokens_after_step(self) -> int:
        return self.computed + 1 if self.decoding else self.target


def run_exactly(model: EngineModel, requests: list[SimRequest]) -> None:
    """Run `requests`, ordered by arrival, on one replica; fills in their times, hits and preemptions."""
    time, unit, block = model.step_time, model.unit_tokens, model.block_tokens
    coming = list(requests)
    waiting: list[SimRequest] = []
    running: list[_Running] = []
    idle: OrderedDict[int, None] = OrderedDict()
    now_s = 0.0

    def in_use() -> set[int]:
        return {b for r in running for b in r.sequence.blocks}

    def units(kv_tokens: int, sequence: SimRequest) -> int:
        return -(-kv_tokens // unit) - len(sequence.blocks) * (block // unit)

    def used() -> int:
        own = sum(units(r.kv_tokens_after_step(), r.sequence) for r in running)
        return own + len(in_use()) * (block // unit)

    def evict() -> None:
        while idle and used() + len(idle) * (block // unit) > model.units:
            idle.popitem(last=False)

    def leave(r: _Running) -> None:
        running.remove(r)
        others = in_use()
        for at in reversed(range(len(r.sequence.blocks))):
            if r.sequence.blocks[at] not in others and at < r.computed // block:
                idle[r.sequence.blocks[at]] = None

    while coming or waiting or running:
        if not waiting and not running:
            now_s = max(now_s, coming[0].arrived_s)
        while coming and coming[0].arrived_s <= now_s:
            waiting.append(coming.pop(0))
        preempted = False
        while used() > model.units and len(running) > 1:
            evict()
            victim = running[-1]
            leave(victim)
            victim.sequence.preemptions += 1
            waiting.insert(0, victim.sequence)
            preempted = True
        budget = model.max_num_batched_tokens - sum(r.decoding for r in running)
        chunks: list[tuple[_Running, int]] = []
        for r in running:
            if not r.decoding:
                chunk = min(r.target - r.computed, budget)
                budget -= chunk
                chunks.append((r, chunk))
        evict()
        while waiting and budget > 0 and len(running) < model.max_num_seqs and not preempted:
            s = waiting[0]
            target = s.prompt_tokens + s.generated
            hits = 0
            there = in_use()
            while hits < len(s.blocks) and (s.blocks[hits] in there or s.blocks[hits] in idle):
                hits += 1
            unused = len(set(s.blocks) - there)
            if used() + unused * (block // unit) + units(target, s) > model.units:
                break
            waiting.pop(0)
            hits = min(hits, (target - 1) // block)
            r = _Running(s, target, hits * block)
            if s.generated == 0:
                s.hit_tokens = hits * block
            running.append(r)
            for b in s.blocks:
                idle.pop(b, None)
            evict()
            chunk = min(target - r.computed, budget)
            budget -= chunk
            chunks.append((r, chunk))
        if not running:
            continue
        decoding = [r for r in running if r.decoding]
        took_s = time.step_s + len(decoding) * time.decode_s
        took_s += time.context_s * sum(r.computed + 1 for r in decoding)
        if chunks:
            took_s += time.prefill_step_s
        for r, chunk in chunks:
            took_s += chunk * time.prefill_s + time.attention_s * chunk * (r.computed + chunk / 2)
        now_s += took_s
        for r in decoding:
            r.computed += 1
            r.sequence.generated += 1
        for r, chunk in chunks:
            r.computed += chunk
            if r.computed == r.target:
                r.sequence.generated += 1
                r.decoding = True
                if r.sequence.generated == 1:
                    r.sequence.first_token_s = now_s
        # Those that decode finish before those whose first token was the last.
        order = decoding + [r for r, _ in chunks]
        order.sort(key=lambda r: (r not in decoding, r.sequence.index if r in decoding else 0))
        for r in order:
            if r.sequence.generated == r.sequence.output_tokens:
                r.sequence.finished_s = now_s
                leave(r)
