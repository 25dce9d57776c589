"""Replicas that prefill or decode fail, hang and are killed: no client notices, no KV cache is read twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.prefill_pools import CHAT_OF, FAILING, HANGING, SCRIPT, Pools, alone, calls, pools, text_of

from forebay.engine.protocol import CHAT_PATH
from forebay.ports import free_port
from forebay.testing.answers import answer_to
from forebay.testing.replica import FakeReplica
from forebay.testing.script import Faults, Fixed

from .conftest import serving, spec_of, until

pytestmark = pytest.mark.usefixtures("clients_ids")


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["500", "503", "429", "refuse", "cut"])
async def test_prefill_failures_are_hidden_from_clients(fault: str) -> None:
    async with pools(prefill=replace(SCRIPT, faults=Faults(((fault, 1.0),)))) as both:
        status, answer = await both.ask()
        assert (status, text_of(answer)) == (200, text_of(await alone(CHAT_OF, CHAT_PATH)))
        assert both.reads() == []
        (why,) = await both.counted()
        assert why == ("no_server" if fault in {"refuse", "cut"} else "prefill_failed")


async def test_request_errors_of_a_replica_reach_the_client() -> None:
    short = replace(SCRIPT, max_model_len=4)
    async with pools(prefill=short, each=2) as both:
        assert (await both.ask())[0] == 200, "the replica that decodes can take it"
        assert calls(both.prefill) == 1, "what lies in the request is not asked twice"
        for replica in both.decode:
            replica.script = short
        status, answer = await both.ask()
        assert (status, b"maximum context length" in answer) == (400, True)
        assert await both.counted() == {"prefill_failed": 1}
        assert both.served.gateway.health()[1]["prefill"] == {"available": 2, "known": 2}


async def test_failed_prefill_is_retried_on_another_replica() -> None:
    async with pools(each=2, routing="round_robin") as both:
        both.prefill[0].script = replace(SCRIPT, faults=Faults((("refuse", 1.0),)))
        for number in range(6):
            assert (await both.ask(messages=[{"role": "user", "content": f"{number} " * 50}]))[0] == 200
        assert calls(both.prefill[:1]) > 0
        assert await both.counted() == {"transferred": 6}


async def test_replica_with_failing_prefills_is_avoided() -> None:
    async with pools(prefill=FAILING) as both:
        for _ in range(20):
            assert (await both.ask())[0] == 200
        assert calls(both.prefill) < 10
        counted = await both.counted()
        assert counted["no_server"] + counted["prefill_failed"] == 20


async def test_prefill_that_fails_everywhere_is_blamed_on_no_replica() -> None:
    async with pools() as both:
        for _ in range(8):
            status, _ = await both.ask(messages=[{"role": "user", "content": "((fault:500))"}])
            assert status == 500
        health = both.served.gateway.health()[1]
        assert (health["prefill"], health["replicas"]) == ({"available": 1, "known": 1},) * 2
        assert await both.counted() == {}


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["500", "503", "refuse"])
@pytest.mark.parametrize("each", [1, 2])
async def test_failed_decode_is_prefilled_on_its_next_decoder(fault: str, stream: bool, each: int) -> None:
    """Also at the same replica, if there is no other."""
    text = f"Why? ((fault:{fault}x1))"
    body = CHAT_OF | {"messages": [{"role": "user", "content": text}]}
    async with pools(each=each) as both:
        for replica in both.prefill:
            # Only those that decode fail at it now.
            async with aiohttp.ClientSession() as session:
                with suppress(aiohttp.ClientError):
                    await session.post(replica.url + CHAT_PATH, json=body, headers={"X-Request-Id": "one"})
        before, _ = both.asked()
        status, answer = await both.ask(body, stream=stream)
        if each == 1:
            assert status == 200
            if not stream:
                assert text_of(answer) == answer_to(text, None, max_tokens=16)[0]
            assert both.asked() == (before + 1, 2)
            assert await both.counted() == {"decode_failed": 1}
        assert both.reads() == [1], "a KV cache is read once"
        assert both.asked()[0] == before + 1, "and not made again"


async def test_unreadable_kv_cache_shuts_no_decoder() -> None:
    """Like a vLLM that is set to fail if it cannot load one."""
    async with pools(decode=FAILING, each=2, routing="round_robin") as both:
        both.decode[1].script = SCRIPT
        for _ in range(12):
            assert (await both.ask())[0] == 200
        failed = calls(both.decode[:1])
        assert failed > 3
        assert both.served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}
        assert (await both.counted())["decode_failed"] == failed
        assert both.reads() == [1] * 12


async def test_decoders_prefill_too_if_no_prefill_server_ever_starts() -> None:
    async with FakeReplica(SCRIPT) as replica:
        away = f"http://127.0.0.1:{free_port()}"
        async with serving(spec_of([replica.url], engine={"prefill": away})) as served:
            both = Pools(served, (), (replica,))
            for _ in range(3):
                assert (await both.ask())[0] == 200
            assert await both.counted() == {"no_server": 3}
            assert served.gateway.health()[0] == 200


async def test_unreadable_list_of_prefill_servers_blocks_nothing(tmp_path: Path) -> None:
    async with FakeReplica(SCRIPT) as replica:
        missing = {"file": str(tmp_path / "missing")}
        async with serving(spec_of([replica.url], engine={"prefill": missing})) as served:
            assert served.gateway._prefill is not None
            prefill = served.gateway._prefill
            await until(lambda: bool(prefill.fault))
            both = Pools(served, (), (replica,))
            assert (await both.ask())[0] == 200
            assert await both.counted() == {"no_server": 1}


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [False, True])
async def test_server_killed_during_a_prefill_costs_no_answer(stream: bool) -> None:
    """Those that wait for a place there do not wait for it, either."""
    async with pools(prefill=HANGING) as both:
        waiting = [asyncio.ensure_future(both.ask(stream=stream)) for _ in range(6)]
        await until(lambda: calls(both.prefill) > 0)
        assert calls(both.decode) == 0
        await both.prefill[0].stop()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 6
        assert await both.counted() == {"no_server": 6}
        assert both.reads() == []


@pytest.mark.heavy
async def test_killed_prefill_server_is_replaced_by_the_other() -> None:
    async with pools(prefill=HANGING, each=2, routing="round_robin") as both:
        both.prefill[1].script = SCRIPT
        waiting = [asyncio.ensure_future(both.ask()) for _ in range(6)]
        await until(lambda: both.prefill[0].report().in_flight == 3 and both.calls()[1] == 3)
        await both.prefill[0].stop()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 6
        assert await both.counted() == {"transferred": 6}
        assert both.reads() == [1] * 6


@pytest.mark.heavy
async def test_replica_that_dies_during_its_prefill_costs_no_answer() -> None:
    slow = replace(SCRIPT, delay=Fixed(0.5))
    async with pools(prefill=slow, each=2, routing="round_robin") as both:
        waiting = [asyncio.ensure_future(both.ask()) for _ in range(4)]
        await until(lambda: calls(both.prefill) == 4)
        await both.decode[0].stop()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 4
        assert both.decode[1].report().completed == 4
        assert set(both.reads()) == {1}


async def test_disconnected_client_ends_its_prefill() -> None:
    async with pools(prefill=HANGING) as both:
        asking = asyncio.ensure_future(both.ask())
        await until(lambda: calls(both.prefill) == 1)
        fleet = both.served.gateway._fleet
        assert fleet.in_flight == 1, "it has a place already"
        asking.cancel()
        await until(lambda: both.prefill[0].report().aborted == 1)
        await until(lambda: fleet.in_flight == 0)
        assert calls(both.decode) == 0
        outcome = (
            'forebay_gateway_requests_total{key="anyone",outcome="hung_up",route="/v1/chat/completions"}'
        )
        assert await both.served.metric(outcome) == 1


@pytest.mark.heavy
async def test_expired_request_ends_its_prefill() -> None:
    # The decoder has as long for its own first byte, however slow this machine is.
    async with pools(prefill=HANGING, relay={"first_byte_s": 1.0}) as both:
        assert (await both.ask(stream=True))[0] == 200
        await until(lambda: both.prefill[0].report().aborted == 1)
        assert await both.counted() == {"prefill_failed": 1}


@pytest.mark.heavy
@settings(max_examples=settings.default.max_examples // 2)
@given(
    shares=st.lists(
        st.tuples(st.sampled_from(["500", "503", "429", "refuse"]), st.floats(0, 0.2)),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    seed=st.integers(0, 1000),
)
def test_each_kv_cache_is_read_once_and_answers_are_equal(shares: list[tuple[str, float]], seed: int) -> None:
    async def main() -> None:
        faulty = replace(SCRIPT, faults=Faults(tuple(shares), seed), retry_after_s=0.01)
        async with pools(prefill=faulty, decode=faulty, each=2) as both:
            told = text_of(await alone(CHAT_OF, CHAT_PATH))
            answers = await asyncio.gather(*(both.ask(id=f"event {number}") for number in range(20)))
            assert {text_of(answer) for status, answer in answers if status == 200} <= {told}
            assert set(both.reads()) <= {1}

    asyncio.run(main())
