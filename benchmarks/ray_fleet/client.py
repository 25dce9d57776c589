"""The client of `python -m benchmarks ray`: reads an `Order` from standard input, prints its answers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any

import aiohttp
import orjson

from forebay.bench.load.schedules import Poisson
from forebay.engine.retry import RetryPolicy, complete_with_retry
from forebay.fleet.config import FleetConfig
from forebay.fleet.endpoints import RayReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Message, Request, Sampling

MODEL = "small"
WORDS = "all talk of the harbour today, and of the ships that wait for the tide "


@dataclass(frozen=True)
class PrefixLoad:
    """`requests` at `rate_per_s` on average, with exponential gaps; the first `warm_up` fill the
    caches and do not count."""

    requests: int = 360
    rate_per_s: float = 30.0
    warm_up: int = 80
    groups: int = 16
    prefix_chars: int = 4096
    own_chars: int = 512
    max_tokens: int = 32
    seed: int = 1
    nonce: str = ""

    @cached_property
    def due_s(self) -> list[float]:
        return Poisson(self.rate_per_s).due_s(self.requests, Random(f"schedule {self.seed}"))

    @cached_property
    def group_of(self) -> list[int]:
        return Random(f"groups {self.seed}").choices(range(self.groups), k=self.requests)

    def id(self, index: int) -> str:
        return f"{self.nonce}-{index}"

    def texts(self, index: int) -> tuple[str, str]:
        """The shared part, and the request's own."""
        shared = f"Group {self.group_of[index]} of {self.nonce}: "
        own = f"Post {index} of {self.nonce}: "
        return _filled(shared, self.prefix_chars), _filled(own, self.own_chars)

    def body(self, index: int) -> dict[str, Any]:
        system, user = self.texts(index)
        return {
            "model": MODEL,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def request(self, index: int) -> Request:
        system, user = self.texts(index)
        return Request(
            id=self.id(index),
            model=MODEL,
            messages=(Message("system", system), Message("user", user)),
            sampling=Sampling(max_tokens=self.max_tokens, extra={"ignore_eos": True}),
        )


def _filled(head: str, chars: int) -> str:
    return (head + WORDS * (chars // len(WORDS) + 1))[:chars]


PAUSE_S = 0.1
CALL_S = 30.0
DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Order:
    """`load` to `urls`: to each in turn, or each group to one of them (`by_group`). `ray` instead
    of `urls`: with the pipeline's own client, which discovers the replicas there. `hang_up`: close
    each connection at the first token."""

    load: PrefixLoad
    urls: tuple[str, ...] = ()
    by_group: bool = False
    ray: str = ""
    deadline_s: float = 0.0
    hang_up: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        fields = json.loads(text)
        return cls(**{**fields, "load": PrefixLoad(**fields["load"]), "urls": tuple(fields["urls"])})


@dataclass(frozen=True, slots=True)
class Answer:
    index: int
    whole: bool = False
    first_ms: float = 0.0
    whole_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 1
    broken: int = 0
    failure: str = field(default="", compare=False)


Ask = Callable[[int, float], Awaitable[Answer]]
"""Sends request number N, due at a time, and returns its outcome."""


async def drive(order: Order, ask: Ask) -> list[Answer]:
    tasks = []
    start_s = time.monotonic() + PAUSE_S
    for index, due_s in enumerate(order.load.due_s):
        await asyncio.sleep(max(0.0, start_s + due_s - time.monotonic()))
        tasks.append(asyncio.ensure_future(ask(index, start_s + due_s)))
    return list(await asyncio.gather(*tasks))


async def over_http(order: Order) -> list[Answer]:
    """With a plain HTTP client that retries by itself."""
    load = order.load
    timeout = aiohttp.ClientTimeout(total=order.deadline_s or CALL_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def ask(index: int, due_s: float) -> Answer:
            url = order.urls[(load.group_of[index] if order.by_group else index) % len(order.urls)]
            found = Answer(index, calls=0)
            while True:
                now = await _call(session, url, order, index, due_s)
                found = replace(now, calls=found.calls + 1, broken=found.broken + now.broken)
                late = time.monotonic() + PAUSE_S > due_s + order.deadline_s
                if found.whole or late:
                    return found
                await asyncio.sleep(PAUSE_S)

        return await drive(order, ask)


async def _call(session: aiohttp.ClientSession, url: str, order: Order, index: int, due_s: float) -> Answer:
    headers = {"Content-Type": "application/json", "X-Request-Id": order.load.id(index)}
    body = orjson.dumps(order.load.body(index))
    found, first_ms, status = b"", 0.0, 0
    try:
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
            status = response.status
            found = await response.content.readany()
            first_ms = (time.monotonic() - due_s) * 1000
            if order.hang_up:
                response.close()
                return Answer(index, first_ms=first_ms)
            found += await response.content.read()
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        return Answer(index, broken=int(bool(found)), failure=type(error).__name__)
    whole_ms = (time.monotonic() - due_s) * 1000
    if status != 200:
        return Answer(index, failure=str(status))
    if not found.rstrip().endswith(DONE):
        return Answer(index, broken=1, failure="broke off")
    in_time = not order.deadline_s or whole_ms <= order.deadline_s * 1000
    prompt, cached = counts_in(found)
    return Answer(index, in_time, first_ms, whole_ms, prompt, cached, failure="" if in_time else "late")


def counts_in(stream: bytes) -> tuple[int, int]:
    """Prompt tokens, and how many of them were cached: from the last event before the end."""
    usage: dict[str, Any] = orjson.loads(stream.rstrip().split(b"\n\n")[-2].removeprefix(b"data: "))["usage"]
    details = usage["prompt_tokens_details"] or {}
    return usage["prompt_tokens"], details.get("cached_tokens") or 0


async def over_fleet(order: Order) -> list[Answer]:
    """With the client of pipelines and its retries."""
    engine = FleetEngine(FleetConfig(RayReplicas(order.ray), model=MODEL))
    await engine.client.start()

    async def ask(index: int, due_s: float) -> Answer:
        done = await complete_with_retry(
            engine,
            order.load.request(index),
            policy=RetryPolicy(),
            timeout_s=CALL_S,
            deadline_s=order.deadline_s or CALL_S,
        )
        completion = done.completion
        if completion is None:
            return Answer(index, calls=done.attempts, failure=str(done.error))
        first_s, usage = completion.timing.first_token_s, completion.usage
        return Answer(
            index,
            True,
            ((first_s or completion.timing.done_s) - due_s) * 1000,
            (completion.timing.done_s - due_s) * 1000,
            usage.prompt_tokens,
            usage.cached_tokens,
            calls=done.attempts,
        )

    try:
        return await drive(order, ask)
    finally:
        await engine.close()


def main() -> None:
    order = Order.from_json(sys.stdin.read())
    seen = asyncio.run(over_fleet(order) if order.ray else over_http(order))
    print(json.dumps([astuple(answer) for answer in seen]))


if __name__ == "__main__":
    main()
