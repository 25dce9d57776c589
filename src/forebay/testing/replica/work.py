"""Simulated work of a fake replica: rate limit, prefix cache and decoding speed."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from heapq import heappop, heappush
from itertools import count
from typing import Any

import orjson

from forebay.testing.replica.asked import ParsedRequest


@dataclass(frozen=True, slots=True)
class KvPlace:
    """The location of a prompt's KV cache, valid until `until_s` on the event loop's clock."""

    replica: str
    number: int
    prompt: str
    until_s: float

    def params(self) -> dict[str, Any]:
        """Parameters like those of vLLM's NIXL connector, which lacks the prompt and the time."""
        place = {"remote_engine_id": self.replica, "remote_block_ids": [self.number]}
        own = {"prompt": self.prompt, "until_s": self.until_s}
        return {"do_remote_prefill": True, "do_remote_decode": False, **place, **own}

    def holds(self, asked: ParsedRequest, *, now_s: float) -> bool:
        return self.prompt == prompt_hash(asked) and now_s <= self.until_s


class KvCaches:
    """KV caches given and read by one replica."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self._given = 0

    def give(self, asked: ParsedRequest, replica: str, *, until_s: float) -> dict[str, Any] | None:
        if not (asked.kv_transfer and asked.kv_transfer.get("do_remote_decode")):
            return None
        self._given += 1
        return KvPlace(replica, self._given, prompt_hash(asked), until_s).params()

    def read(self, asked: ParsedRequest, *, now_s: float) -> bool:
        place = kv_place(asked)
        if place is None:
            return False
        self.reads[f"{place.replica} {place.number}"] += 1
        return not place.holds(asked, now_s=now_s)


def kv_place(asked: ParsedRequest) -> KvPlace | None:
    params = asked.kv_transfer
    if not params or not params.get("do_remote_prefill"):
        return None
    (number,) = params["remote_block_ids"]
    return KvPlace(params["remote_engine_id"], number, params["prompt"], params["until_s"])


def prompt_hash(asked: ParsedRequest) -> str:
    return sha1(orjson.dumps([asked.text, asked.schema])).hexdigest()


class TokenBucket:
    """A token bucket with `most` tokens, refilled at `per_s`; None: unlimited."""

    def __init__(self, per_s: float | None, most: int) -> None:
        self._per_s = per_s
        self._most = most
        self._tokens = float(most)
        self._at_s = 0.0

    def take(self, now_s: float) -> float:
        if self._per_s is None:
            return 0.0
        self._tokens = min(self._most, self._tokens + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_s
        self._tokens -= 1
        return 0.0


class ScriptedPrefixCache:
    """LRU cache of text blocks, each identified by itself and all text before it."""

    def __init__(self, block_chars: int, max_blocks: int) -> None:
        self._block_chars = block_chars
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, text: str) -> int:
        """The number of leading characters of `text` that are cached; caches all its whole blocks."""
        if not self._max_blocks:
            return 0
        chain = 0
        cached = 0
        hit = True
        for start in range(0, len(text) - self._block_chars + 1, self._block_chars):
            chain = hash((chain, text[start : start + self._block_chars]))
            hit = hit and chain in self._blocks
            if hit:
                cached += self._block_chars
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
        return cached


@dataclass(frozen=True, slots=True)
class WorkReport:
    """Seconds of work at speed 1. `could_s`: with all slots always in use. `wasted_s`: on
    requests without a complete answer, or with an earlier one. `answers`: complete ones, first
    per request."""

    speed: float
    could_s: float
    spent_s: float
    wasted_s: float
    answers: int
    calls: int
    aborted: int
    waiting: int
    running: int


class ReplicaWork:
    """Concurrent requests at one speed, on the running event loop. A second of work takes 1 / speed
    seconds, times 1 + `crowding` for each other running request."""

    def __init__(self, *, slots: int | None = None, crowding: float = 0.0) -> None:
        self._slots = slots
        self._crowding = crowding
        self._speed = 1.0
        self._running = 0
        self._at_s: float | None = None
        # Progress of a request that always runs, and the sum over those that did run.
        self._came_s = 0.0
        self._spent_s = self._wasted_s = self._could_s = 0.0
        self._due: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def speed(self) -> float:
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._pass()
        self._speed = speed
        self._set_timer()

    @property
    def times(self) -> tuple[float, float, float]:
        self._pass()
        return self._could_s, self._spent_s, self._wasted_s

    @contextmanager
    def running(self) -> Iterator[Callable[[], None]]:
        """Wraps a running request."""
        self._pass()
        self._running += 1
        self._set_timer()
        began_s, of_use = self._came_s, False

        def done() -> None:
            nonlocal of_use
            of_use = True

        try:
            yield done
        finally:
            self._pass()
            self._running -= 1
            self._wasted_s += 0.0 if of_use else self._came_s - began_s
            self._set_timer()

    async def do(self, seconds: float) -> None:
        """Return after this much work on a running request."""
        if seconds <= 0:
            return
        self._pass()
        future = asyncio.get_running_loop().create_future()
        heappush(self._due, (self._came_s + seconds, next(self._numbers), future))
        self._set_timer()
        await future

    def _pass(self) -> None:
        now_s = asyncio.get_running_loop().time()
        passed_s = now_s - (now_s if self._at_s is None else self._at_s)
        self._at_s = now_s
        self._came_s += passed_s * self._rate(self._running)
        self._spent_s += passed_s * self._rate(self._running) * self._running
        if self._slots is not None:
            self._could_s += passed_s * self._rate(self._slots) * self._slots

    def _rate(self, running: int) -> float:
        return self._speed / (1 + self._crowding * max(0, running - 1))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._due and self._due[0][2].done():
            heappop(self._due)
        if self._due and self._speed > 0:
            left_s = max(0.0, self._due[0][0] - self._came_s)
            self._timer = asyncio.get_running_loop().call_later(
                left_s / self._rate(self._running), self._fire
            )

    def _fire(self) -> None:
        self._timer = None
        self._pass()
        # A timer may fire a clock tick early.
        while self._due and self._due[0][0] <= self._came_s + 1e-6:
            future = heappop(self._due)[2]
            if not future.done():
                future.set_result(None)
        self._set_timer()


COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "request_success",
)


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    running: int
    waiting: int
    kv_usage: float


def metrics_text(model: str, load: ReportedLoad, totals: Mapping[str, int], *, kv_tokens: int = 0) -> str:
    labels = f'{{engine="0",model_name="{model}"}}'
    gauges = {
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "kv_cache_usage_perc": load.kv_usage,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{labels} {float(value)}"]
    for name in COUNTERS:
        total = float(totals.get(name, 0))
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{labels} {total}"]
    if kv_tokens:
        sizes = f'block_size="1",engine="0",num_gpu_blocks="{kv_tokens}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{sizes}}} 1.0"]
    return "\n".join(lines) + "\n"


def load_headers(load: ReportedLoad) -> dict[str, str]:
    return {
        "endpoint-load-metrics": (
            f"TEXT named_metrics.num_requests_waiting={float(load.waiting)},"
            f" named_metrics.kv_cache_usage_perc={load.kv_usage}"
        )
    }
