from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.engines import calls_of

from forebay.engine import Deadline, Engine
from forebay.engine.client import HttpEngine
from forebay.engine.protocol import KV_TRANSFER, request_body
from forebay.engine.retry import RetryPolicy, complete_with_retry
from forebay.errors import ServerFault, Unauthorized
from forebay.fleet import disaggregated
from forebay.fleet.config import FleetConfig, FleetEngineFactory
from forebay.fleet.disaggregated import (
    MISSING,
    PREFILL_PARAMS,
    DisaggregatedEngine,
    DisaggregatedEngineFactory,
    engine_factory,
    prefill_of,
    while_some_prefill,
)
from forebay.fleet.discovery import FileReplicas, FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import JSON, Completion, Message, Request, Sampling
from forebay.testing.replica.server import FakeReplica
from forebay.testing.script import Faults, Fixed, ReplicaScript
from forebay.testing.waiting import wait_until

SCRIPT = ReplicaScript(models=("m",), delay=Fixed(0.0), block_chars=16, cache_blocks=1000)
POLICY = RetryPolicy(max_attempts=50, base_s=0.01, max_backoff_s=0.05)


def request(number: int, text: str = "What is this post about? It is about rain.") -> Request:
    return Request(f"event {number}", "m", (Message("user", text),), sampling=Sampling(max_tokens=8))


class Pools:
    def __init__(self, prefill: Sequence[FakeReplica], decode: Sequence[FakeReplica], engine: Engine) -> None:
        self.prefill = prefill
        self.decode = decode
        self.engine = engine

    async def answer(self, asked: Request) -> Completion:
        outcome = await complete_with_retry(
            self.engine, asked, policy=POLICY, timeout_s=10.0, deadline_s=60.0
        )
        assert outcome.completion is not None, outcome.error
        return outcome.completion

    def reads(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for replica in self.decode:
            for place, times in replica.report().kv_reads.items():
                found[place] = found.get(place, 0) + times
        return found

    def usable(self) -> int:
        assert isinstance(self.engine, DisaggregatedEngine)
        return self.engine._decode.client.usable

    def calls(self, replicas: Sequence[FakeReplica]) -> int:
        return sum(map(calls_of, replicas))


@asynccontextmanager
async def pools(
    prefill: ReplicaScript = SCRIPT,
    decode: ReplicaScript = SCRIPT,
    *,
    each: int = 2,
    capacity: float = math.inf,
) -> AsyncIterator[Pools]:
    async with AsyncExitStack() as opened:
        first = [await opened.enter_async_context(FakeReplica(prefill)) for _ in range(each)]
        second = [await opened.enter_async_context(FakeReplica(decode)) for _ in range(each)]
        urls = tuple(replica.url for replica in second)
        fleet = FleetConfig(FixedReplicas(urls), model="m", capacity=capacity)
        engine = engine_factory(fleet, FixedReplicas(tuple(replica.url for replica in first)))()
        opened.push_async_callback(engine.close)
        yield Pools(first, second, engine)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, timeout_s=30)


async def alone(asked: Request) -> Completion:
    async with FakeReplica(SCRIPT) as replica:
        engine = HttpEngine(replica.url)
        try:
            return await engine.complete(asked, timeout_s=10.0)
        finally:
            await engine.close()


async def test_each_request_is_prefilled_and_decoded_on_two_replicas() -> None:
    async with pools() as both:
        answers = await asyncio.gather(*(both.answer(request(number)) for number in range(20)))
        assert both.calls(both.prefill) == 20
        assert both.calls(both.decode) == 20
        assert list(both.reads().values()) == [1] * 20
        told = await alone(request(0))
        assert {answer.text for answer in answers} == {told.text}
        assert {answer.usage.prompt_tokens for answer in answers} == {told.usage.prompt_tokens}
        assert all(answer.replica in {one.url for one in both.decode} for answer in answers)


async def test_cached_tokens_and_start_time_are_those_of_the_prefill() -> None:
    async with pools(each=1) as both:
        first = await both.answer(request(0))
        second = await both.answer(request(1))
        assert first.usage.cached_tokens == 0, "a decoding replica would count all that it took over"
        assert second.usage.cached_tokens > 0
        whole = replace(SCRIPT, delay=Fixed(0.2))
    async with pools(prefill=whole, each=1) as both:
        assert (await both.answer(request(0))).timing.latency_s >= 0.2


async def test_failed_decode_is_prefilled_on_its_next_decoder() -> None:
    async with pools(decode=replace(SCRIPT, faults=Faults((("500", 1.0),)))) as both:
        with pytest.raises(ServerFault):
            await both.engine.complete(request(0), timeout_s=10.0)
        assert (both.calls(both.prefill), both.calls(both.decode)) == (1, 1), "its KV cache is read once"
        for replica in both.decode:
            replica.script = SCRIPT
        assert (await both.answer(request(0))).text == (await alone(request(0))).text
        assert (both.calls(both.prefill), both.calls(both.decode)) == (1, 2)
        assert sum(both.reads().values()) == 1


async def test_dying_replica_costs_no_answer() -> None:
    async with pools() as both:
        told = await both.answer(request(0))
        await both.decode[0].stop()
        answers = await asyncio.gather(*(both.answer(request(number)) for number in range(1, 12)))
        assert {answer.text for answer in answers} == {told.text}
        assert {answer.replica for answer in answers} == {both.decode[1].url}


@pytest.mark.heavy
async def test_decoders_prefill_too_if_no_prefill_replica_ever_starts() -> None:
    async with pools(each=1) as both:
        await both.prefill[0].stop()
        answers = await asyncio.gather(*(both.answer(request(number)) for number in range(12)))
        assert {answer.text for answer in answers} == {(await alone(request(0))).text}


@pytest.mark.heavy
async def test_unreadable_list_of_prefill_servers_blocks_nothing(tmp_path: Path) -> None:
    async with FakeReplica(SCRIPT) as decode:
        fleet = FleetConfig(FixedReplicas((decode.url,)), model="m")
        engine = engine_factory(fleet, FileReplicas(str(tmp_path / "missing")))()
        assert isinstance(engine, DisaggregatedEngine)
        answer = await engine.complete(request(0), timeout_s=10.0)
        assert answer.handover == "no_server"
        await engine.close()


async def test_prefill_wait_ends_if_its_replica_dies() -> None:
    async with pools(prefill=replace(SCRIPT, delay=Fixed(30.0)), each=1, capacity=2) as both:
        waiting = [asyncio.ensure_future(both.answer(request(number))) for number in range(6)]
        await until(lambda: both.calls(both.prefill) > 0)
        await both.prefill[0].stop()
        answers = await asyncio.gather(*waiting)
        assert {answer.text for answer in answers} == {(await alone(request(0))).text}


@pytest.mark.heavy
async def test_kv_cache_is_made_only_once_its_decode_has_a_slot() -> None:
    async with pools(decode=replace(SCRIPT, decode=Fixed(0.02)), each=1, capacity=2) as both:

        async def answer(number: int) -> int:
            await both.answer(request(number))
            return both.calls(both.prefill) - both.calls(both.decode)

        ahead = await asyncio.gather(*(answer(number) for number in range(40)))
        assert max(ahead) <= 2, "as many as there are places"


async def test_decode_time_limit_starts_after_the_prefill() -> None:
    endless = replace(SCRIPT, faults=Faults((("hang", 1.0),)))
    async with pools(prefill=endless, each=1) as both:
        prefill, decode = (
            FleetEngine(FleetConfig(FixedReplicas((replica.url,)), model="m", capacity=places))
            for replica, places in ((both.prefill[0], 1), (both.decode[0], 2))
        )
        engine = DisaggregatedEngine(prefill, decode)
        deadlines = [Deadline(60.0) for _ in range(2)]
        calls = [
            asyncio.ensure_future(
                engine.complete(request(number), timeout_s=60.0, deadline=deadlines[number])
            )
            for number in range(2)
        ]
        await until(lambda: both.calls(both.prefill) == 1)
        await until(lambda: decode.client.in_flight == 2)
        assert [deadline.begun_s is not None for deadline in deadlines] == [True, False]
        (replica,) = decode.client._membership.rows.values()
        assert all(lease.ignore_silence for lease in replica.leases), "its silence is not its fault"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert decode.client.in_flight == 0
        await engine.close()


async def test_prefill_refusals_are_not_blamed_on_decoders() -> None:
    async with pools(each=1) as both:
        with pytest.raises(Unauthorized):
            await both.engine.complete(request(0, "((fault:401))"), timeout_s=10.0)
        assert both.calls(both.decode) == 0
        assert both.usable() == 1


async def test_decoders_prefill_while_the_only_prefill_server_refuses_the_key() -> None:
    async with pools(prefill=replace(SCRIPT, faults=Faults((("401", 1.0),))), each=1) as both:
        assert (await both.answer(request(0))).handover == "no_server"


async def test_unreadable_kv_cache_shuts_no_decoder() -> None:
    async with pools(decode=replace(SCRIPT, faults=Faults((("500", 1.0),))), each=1) as both:
        for number in range(50):
            with pytest.raises(ServerFault):
                await both.engine.complete(request(number), timeout_s=10.0)
        assert both.calls(both.prefill) == 50
        assert both.usable() == 1


def test_unused_prefills_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with pools(prefill=replace(SCRIPT, gives_kv_cache=False)) as both:
            for number in range(2 * MISSING):
                await both.answer(request(number))

    asyncio.run(main())
    assert [record.message.split(",")[1] for record in caplog.records] == [f" {MISSING} times"]


@pytest.mark.heavy
async def test_each_answer_reports_its_kv_transfer_or_why_there_was_none() -> None:
    async with pools(each=1) as both:
        assert (await both.answer(request(0))).handover == "transferred"
        both.prefill[0].script = replace(SCRIPT, gives_kv_cache=False)
        assert (await both.answer(request(1))).handover == "no_kv_cache"
        both.prefill[0].script = replace(SCRIPT, faults=Faults((("500", 1.0),)))
        assert (await both.answer(request(2))).handover == "prefill_failed"
        both.prefill[0].script = SCRIPT
        both.decode[0].script = replace(SCRIPT, faults=Faults((("500", 1.0),)))
        with pytest.raises(ServerFault):
            await both.engine.complete(request(3), timeout_s=10.0)
        both.decode[0].script = SCRIPT
        assert (await both.answer(request(3))).handover == "decode_failed"
        await both.prefill[0].stop()
        assert (await both.answer(request(4))).handover == "no_server"
        assert isinstance(both.engine, DisaggregatedEngine)
        none_prefills = both.engine._none_prefills
        await until(none_prefills)
        assert (await both.answer(request(5))).handover == "no_server"


@pytest.mark.heavy
async def test_outage_of_decoders_costs_no_prefills() -> None:
    async with pools() as both:
        await both.answer(request(0))
        for replica in both.decode:
            replica.script = replace(SCRIPT, faults=Faults((("503", 1.0),)))
        waiting = [asyncio.ensure_future(both.answer(request(number))) for number in range(1, 41)]
        await until(lambda: both.calls(both.decode) > 20)
        assert both.calls(both.prefill) <= 41
        for replica in both.decode:
            replica.script = SCRIPT
        await asyncio.gather(*waiting)
        assert both.calls(both.prefill) <= 41


@pytest.mark.heavy
@settings(max_examples=settings.default.max_examples // 2)
@given(
    shares=st.lists(
        st.tuples(st.sampled_from(["500", "503", "429", "cut", "refuse", "error"]), st.floats(0, 0.2)),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    seed=st.integers(0, 1000),
)
async def test_each_kv_cache_is_read_once_and_each_request_answered(
    shares: list[tuple[str, float]], seed: int
) -> None:
    faulty = replace(SCRIPT, faults=Faults(tuple(shares), seed), retry_after_s=0.01)
    async with pools(prefill=faulty, decode=faulty) as both:
        texts = [f"Post {number}: it rains again in the harbour." for number in range(12)]
        answers = await asyncio.gather(
            *(both.answer(request(number, text)) for number, text in enumerate(texts))
        )
        for number, answer in enumerate(answers):
            assert answer.text == (await alone(request(number, texts[number]))).text
        assert set(both.reads().values()) <= {1}


def test_prefill_has_the_same_prompt_and_one_token() -> None:
    extra: dict[str, JSON] = {"max_tokens": 64, "min_tokens": 8, "ignore_eos": True, "stream_options": {}}
    sampling = Sampling(max_tokens=64, extra=extra)
    asked = Request("e", "m", prompt="Why?", sampling=sampling, schema={"type": "object"})
    body = orjson.loads(request_body(prefill_of(asked), stream=False))
    whole = orjson.loads(request_body(asked, stream=False))
    del whole["min_tokens"], whole["stream_options"]
    assert body == {**whole, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}


def test_without_prefill_addresses_nothing_is_disaggregated() -> None:
    fleet = FleetConfig(FixedReplicas(("http://a:1",)))
    assert engine_factory(fleet) == FleetEngineFactory(fleet)
    apart = engine_factory(fleet, FixedReplicas(("http://p:1",)))
    assert isinstance(apart, DisaggregatedEngineFactory)
    assert (apart.prefill.stream, apart.decode.stream) == (False, True)


async def test_prefill_that_swallows_a_cancellation_still_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As before Python 3.11, where its time is over in the same round of the loop."""
    monkeypatch.setattr(disaggregated, "LOOK_S", 0.01)
    begun, steps = asyncio.Event(), []

    async def prefill() -> None:
        for replica in ("one", "other"):
            steps.append(replica)
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if replica == "other":
                    raise

    asking = asyncio.create_task(while_some_prefill(prefill(), lambda: False))
    await begun.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    assert steps == ["one", "other"]
