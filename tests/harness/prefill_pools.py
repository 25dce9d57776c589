"""A gateway in front of prefill and decode replicas, which transfer KV caches."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
from tests.gateway.conftest import CHAT, Served, serving, spec_of, until
from tests.harness.engines import calls_of

from forebay.engine.protocol import CHAT_PATH
from forebay.fleet.client import FleetClient
from forebay.gateway.app import Gateway
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

SCRIPT = ReplicaScript(delay=Fixed(0.0), block_chars=16, cache_blocks=1000)
FAILING = replace(SCRIPT, faults=Faults((("500", 1.0),)))
HANGING = replace(SCRIPT, faults=Faults((("hang", 1.0),)))
CHAT_OF = CHAT | {"messages": [{"role": "user", "content": "What is this about? It is about rain."}]}
PROMPT = {"model": "fake", "prompt": "What is this about? It is about rain.", "max_tokens": 16}
WHY = ("no_server", "prefill_failed", "no_kv_cache", "decode_failed", "unsuitable")


class Pools:
    """A gateway in front of prefill and decode replicas."""

    def __init__(self, served: Served, prefill: Sequence[FakeReplica], decode: Sequence[FakeReplica]) -> None:
        self.served = served
        self.prefill = prefill
        self.decode = decode

    async def ask(
        self, body: dict[str, Any] | None = None, path: str = CHAT_PATH, id: str = "one", **more: Any
    ) -> tuple[int, bytes]:
        asked = (CHAT_OF if body is None else body) | more
        headers = {"X-Request-Id": id}
        async with self.served.session.post(self.served.url + path, json=asked, headers=headers) as response:
            return response.status, await response.read()

    def calls(self) -> tuple[int, int]:
        """Calls of prefill and of decode replicas."""
        return calls(self.prefill), calls(self.decode)

    def asked(self) -> tuple[int, int]:
        """The same of requests that have an id."""
        return sum(map(calls_of, self.prefill)), sum(map(calls_of, self.decode))

    def reads(self) -> list[int]:
        """How often each KV cache was read."""
        found: dict[str, int] = {}
        for replica in self.decode:
            for place, times in replica.report().kv_reads.items():
                found[place] = found.get(place, 0) + times
        return list(found.values())

    async def counted(self) -> dict[str, float]:
        """Answers by kind of prefill."""
        found = {"transferred": await self.served.metric("forebay_gateway_kv_transfers_total")}
        for why in WHY:
            found[why] = await self.served.metric(f'forebay_gateway_kv_fallbacks_total{{cause="{why}"}}')
        return {name: count for name, count in found.items() if count}


def calls(replicas: Sequence[FakeReplica]) -> int:
    return sum(sum(replica.report().calls.values()) for replica in replicas)


@asynccontextmanager
async def pools(
    prefill: ReplicaScript = SCRIPT,
    decode: ReplicaScript = SCRIPT,
    *,
    each: int = 1,
    capacity: float = math.inf,
    **settings: Any,
) -> AsyncIterator[Pools]:
    async with AsyncExitStack() as stack:
        first = [await stack.enter_async_context(FakeReplica(prefill)) for _ in range(each)]
        second = [await stack.enter_async_context(FakeReplica(decode)) for _ in range(each)]
        there = {"prefill": [replica.url for replica in first]}
        spec = spec_of([replica.url for replica in second], engine=there, **settings)
        elsewhere = spec.prefill_fleet()
        assert elsewhere is not None
        gateway = Gateway(
            FleetClient(replace(spec.fleet(), capacity=capacity)),
            prefill=FleetClient(elsewhere),
            limits=spec.limits,
            rules=spec.relay.rules(),
        )
        served = await stack.enter_async_context(serving(spec, gateway=gateway))
        assert gateway._prefill is not None
        prefills = gateway._prefill
        await until(lambda: gateway._fleet.probed and prefills.probed)
        yield Pools(served, first, second)


async def alone(body: dict[str, Any], path: str, id: str = "one") -> bytes:
    """The answer of a gateway without prefill replicas."""
    async with FakeReplica(SCRIPT) as replica, serving(spec_of([replica.url])) as served:
        status, answer = await Pools(served, (), (replica,)).ask(body, path, id)
        assert status == 200
        return answer


def text_of(answer: bytes) -> str:
    (choice,) = orjson.loads(answer)["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])
