"""What is held against a replica, and what against the request: a client that fails harms nobody else."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import orjson
import pytest

from forebay.testing.replica import ReplicaScript
from forebay.testing.script import FAULTS, Faults, Fixed

from .conftest import CHAT, QUICK, Served, before, until

pytestmark = pytest.mark.heavy

ATTACKERS = 3
REQUESTS = 20


async def ask(served: Served, text: str = "hello", *, stream: bool = False) -> tuple[int, bytes]:
    body = CHAT | {"messages": [{"role": "user", "content": text}], "stream": stream}
    async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
        return response.status, await response.read()


async def attack(served: Served, fault: str, ended: asyncio.Event) -> None:
    while not ended.is_set():
        with suppress(aiohttp.ClientError, asyncio.TimeoutError):
            await asyncio.wait_for(ask(served, f"((fault:{fault}))", stream=True), 0.2)
        await asyncio.sleep(0)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("fault", sorted(FAULTS - {"huge"}))
async def test_failing_prompts_cost_other_clients_nothing(fault: str, replicas: int) -> None:
    async with before(*[QUICK] * replicas) as (served, _):
        ended = asyncio.Event()
        attackers = [asyncio.ensure_future(attack(served, fault, ended)) for _ in range(ATTACKERS)]
        try:
            for number in range(REQUESTS):
                status, body = await ask(served, f"question {number}")
                assert status == 200, body
                assert served.gateway.health()[1]["replicas"] == {"available": replicas, "known": replicas}
        finally:
            ended.set()
            await asyncio.gather(*attackers)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_refusal_of_a_guard_reaches_the_client(status: int, replicas: int) -> None:
    async with before(*[QUICK] * replicas) as (served, _):
        found, body = await ask(served, f"((fault:{status}))")
        assert (found, orjson.loads(body)["error"]["message"]) == (status, f"scripted fault {status}")


@pytest.mark.parametrize("fault", ["429", "502", "503"])
async def test_refused_prompt_takes_no_slots_from_others(fault: str) -> None:
    async with before(QUICK) as (served, replicas):
        held = [asyncio.ensure_future(ask(served, f"((fault:hang)) {number}")) for number in range(6)]
        await until(lambda: replicas[0].report().in_flight == 6)
        assert (await ask(served, f"((fault:{fault}))"))[0] in {429, 503}
        assert (await ask(served))[0] == 200, "six are allowed"
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_replicas_that_limit_their_calls_share_them() -> None:
    script = ReplicaScript(delay=Fixed(0.2), max_calls=2)
    async with before(script, script) as (served, replicas):
        answers = await asyncio.gather(*(ask(served, f"question {number}") for number in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert min(len(replica.report().calls) for replica in replicas) >= 2


async def test_limit_reached_by_all_replicas_is_passed_on() -> None:
    script = ReplicaScript(delay=Fixed(0.0), faults=Faults((("429", 1.0),)))
    async with before(script, relay={"absent_s": 0.1}) as (served, _):
        status, body = await ask(served)
        assert (status, orjson.loads(body)["error"]["code"]) == (429, "rate_limited")


async def test_rejected_api_key_is_found_by_a_probe_and_named() -> None:
    async with before(QUICK, QUICK, relay={"absent_s": 0.1}) as (served, replicas):
        replicas[0].script = ReplicaScript(delay=Fixed(0.0), api_key="sk-secret")
        # At once: one after another, all may go to the other replica.
        answers = await asyncio.gather(*(ask(served, f"question {number}") for number in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        await until(lambda: served.gateway.health()[1]["replicas"] == {"available": 1, "known": 2})
