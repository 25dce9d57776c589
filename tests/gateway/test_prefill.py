"""Prompts prefilled at one replica and decoded at another: a KV cache is read once and in time, no answer
differs, and no client notices what fails."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.engine.protocol import CHAT_PATH, KV_TRANSFER, PROMPT_PATH
from forebay.errors import ProtocolViolation
from forebay.fleet.client import FleetClient
from forebay.fleet.kv_handover import PREFILL_PARAMS
from forebay.gateway import serve
from forebay.gateway.app import Gateway
from forebay.gateway.body import EMBED_PATH
from forebay.gateway.prefill import MAX_DEPTH, decode_body, kv_transfer_in, prefill_body
from forebay.gateway.serve import look_at_prefill
from forebay.ports import free_port
from forebay.testing.answers import answer_to
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.replica.kv_caches import KvPlace
from forebay.testing.script import Faults, Fixed

from .conftest import CHAT, Served, serving, spec_of, until

SCRIPT = ReplicaScript(delay=Fixed(0.0), block_chars=16, cache_blocks=1000)
FAILING = replace(SCRIPT, faults=Faults((("500", 1.0),)))
HANGING = replace(SCRIPT, faults=Faults((("hang", 1.0),)))
CHAT_OF = CHAT | {"messages": [{"role": "user", "content": "What is this about? It is about rain."}]}
PROMPT = {"model": "fake", "prompt": "What is this about? It is about rain.", "max_tokens": 16}
WHY = ("no_server", "prefill_failed", "no_kv_cache", "decode_failed", "unsuitable")


def nested(levels: int) -> Any:
    """Lists within each other, more than orjson may write."""
    found: list[Any] = []
    for _ in range(levels - 1):
        found = [found]
    return found


class Pools:
    """A gateway before replicas that prefill and replicas that decode."""

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
        """At those that prefill, and at those that decode."""
        return calls(self.prefill), calls(self.decode)

    def reads(self) -> list[int]:
        """How often each KV cache was read, by all together."""
        found: dict[str, int] = {}
        for replica in self.decode:
            for place, times in replica.report().kv_reads.items():
                found[place] = found.get(place, 0) + times
        return list(found.values())

    async def counted(self) -> dict[str, float]:
        """The answers by how their prompt was prefilled."""
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
    """What a gateway without prefill answers."""
    async with FakeReplica(SCRIPT) as replica, serving(spec_of([replica.url])) as served:
        status, answer = await Pools(served, (), (replica,)).ask(body, path, id)
        assert status == 200
        return answer


def text_of(answer: bytes) -> str:
    """The text of an answer in one piece."""
    (choice,) = orjson.loads(answer)["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT_OF), (PROMPT_PATH, PROMPT)])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_prompt_is_prefilled_at_one_and_decoded_at_another(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    body = body | {"stream": stream}
    told = await alone(body, path)
    async with pools(each=2) as both:
        answers = await asyncio.gather(*(both.ask(body, path) for _ in range(12)))
        assert {status for status, _ in answers} == {200}
        assert both.calls() == (12, 12)
        assert both.reads() == [1] * 12
        assert await both.counted() == {"transferred": 12}
        if stream:
            assert {answer for _, answer in answers} == {told}
        else:
            assert {text_of(answer) for _, answer in answers} == {text_of(told)}


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (CHAT_PATH, CHAT_OF | {"n": 2}, {"unsuitable": 1}),
        (PROMPT_PATH, PROMPT | {"prompt": ["one", "two"]}, {"unsuitable": 1}),
        (CHAT_PATH, CHAT_OF | {KV_TRANSFER: None}, {"unsuitable": 1}),
        (CHAT_PATH, CHAT_OF | {"metadata": nested(300)}, {"unsuitable": 1}),
        (EMBED_PATH, {"model": "fake", "input": "one"}, {}),
    ],
)
async def test_what_no_kv_cache_can_be_handed_over_for_goes_to_one_replica_unchanged(
    path: str, body: dict[str, Any], why: dict[str, float]
) -> None:
    async with pools(limits={"max_json_depth": 1000}) as both:
        text = json.dumps(body).encode()
        async with both.served.session.post(both.served.url + path, data=text) as response:
            assert response.status == 200
        assert both.calls() == (0, 1)
        assert await both.counted() == why


async def test_both_replicas_get_the_clients_headers_and_its_words() -> None:
    seen: list[tuple[str, bytes, Mapping[str, str]]] = []
    given = {"remote_engine_id": "p", "remote_block_ids": [[1, 2]]}

    @asynccontextmanager
    async def recorder(name: str) -> AsyncIterator[str]:
        async def chat(request: web.Request) -> web.Response:
            seen.append((name, await request.read(), request.headers))
            return web.json_response({"choices": [], KV_TRANSFER: given})

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": "fake"}]})

        async def healthy(request: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.add_routes(
            [web.post(CHAT_PATH, chat), web.get("/v1/models", models), web.get("/health", healthy)]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    odd = orjson.dumps(CHAT_OF)[:-1] + b' , "unknown" : 1.50e0 , "min_tokens":3 }\n'
    headers = {"X-Request-Id": "mine-1", "Authorization": "Bearer sk-client", "X-Own": "kept"}
    async with (
        recorder("prefill") as first,
        recorder("decode") as second,
        serving(spec_of([second], engine={"prefill": first})) as served,
        served.session.post(served.url + CHAT_PATH, data=odd, headers=headers) as response,
    ):
        assert response.status == 200
    assert [name for name, _, _ in seen] == ["prefill", "decode"]
    for _, _, sent in seen:
        assert (sent["X-Request-Id"], sent["X-Own"]) == ("mine-1", "kept")
        assert "Authorization" not in sent
    prefill, decode = (body for _, body, _ in seen)
    assert orjson.loads(prefill) == CHAT_OF | {"unknown": 1.5, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}
    assert decode == odd[: odd.rindex(b"}")] + b',"kv_transfer_params":' + orjson.dumps(given) + b"}"


async def test_what_a_prompt_was_counted_is_learned_also_before_a_long_list_of_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM names a block for some tokens each, behind its counts."""
    params = KvPlace.params
    blocks = {"blocks": [list(range(4000))]}
    monkeypatch.setattr(KvPlace, "params", lambda place: params(place) | blocks)
    async with pools() as both:
        prefill = both.served.gateway._prefill
        assert prefill is not None
        before = prefill._tokens.chars_per_token
        status, _ = await both.ask(messages=[{"role": "user", "content": "rain " * 500}])
        assert status == 200
        assert await both.counted() == {"transferred": 1}
        assert prefill._tokens.chars_per_token != before


async def test_no_kv_cache_waits_for_a_place() -> None:
    async with pools(decode=replace(SCRIPT, decode=Fixed(0.02)), capacity=2) as both:

        async def ahead() -> int:
            await both.ask()
            prefilled, decoded = both.calls()
            return prefilled - decoded

        assert max(await asyncio.gather(*(ahead() for _ in range(40)))) <= 2, "as many as there are places"
        assert await both.counted() == {"transferred": 40}


@pytest.mark.parametrize("fault", ["500", "503", "429", "refuse", "cut"])
async def test_what_a_prefill_fails_with_no_client_notices(fault: str) -> None:
    async with pools(prefill=replace(SCRIPT, faults=Faults(((fault, 1.0),)))) as both:
        status, answer = await both.ask()
        assert (status, text_of(answer)) == (200, text_of(await alone(CHAT_OF, CHAT_PATH)))
        assert both.reads() == []
        (why,) = await both.counted()
        assert why == ("no_server" if fault in {"refuse", "cut"} else "prefill_failed")


async def test_without_a_kv_cache_the_replica_does_both() -> None:
    async with pools(prefill=replace(SCRIPT, gives_kv_cache=False)) as both:
        assert (await both.ask())[0] == 200
        assert both.reads() == []
        assert await both.counted() == {"no_kv_cache": 1}


async def test_what_a_replica_says_of_a_wrong_request_the_client_reads_in_its_words() -> None:
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


async def test_a_prefill_goes_to_another_replica_where_one_fails() -> None:
    async with pools(each=2) as both:
        both.prefill[0].script = replace(SCRIPT, faults=Faults((("refuse", 1.0),)))
        for number in range(6):
            assert (await both.ask(messages=[{"role": "user", "content": f"{number} " * 50}]))[0] == 200
        assert calls(both.prefill[:1]) > 0
        assert await both.counted() == {"transferred": 6}


async def test_a_replica_that_fails_at_prefills_that_others_do_is_left_alone() -> None:
    async with pools(prefill=FAILING) as both:
        for _ in range(20):
            assert (await both.ask())[0] == 200
        assert calls(both.prefill) < 10
        counted = await both.counted()
        assert counted["no_server"] + counted["prefill_failed"] == 20


async def test_what_both_fail_at_is_held_against_nobody() -> None:
    async with pools() as both:
        for _ in range(8):
            status, _ = await both.ask(messages=[{"role": "user", "content": "((fault:500))"}])
            assert status == 500
        health = both.served.gateway.health()[1]
        assert (health["prefill"], health["replicas"]) == ({"available": 1, "known": 1},) * 2
        assert await both.counted() == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["500", "503", "refuse"])
@pytest.mark.parametrize("each", [1, 2])
async def test_what_fails_in_decoding_is_prefilled_where_it_is_decoded_next(
    fault: str, stream: bool, each: int
) -> None:
    """Also at the same replica, where there is no other."""
    text = f"Why? ((fault:{fault}x1))"
    body = CHAT_OF | {"messages": [{"role": "user", "content": text}]}
    async with pools(each=each) as both:
        for replica in both.prefill:
            # Only those that decode fail at it now.
            async with aiohttp.ClientSession() as session:
                with suppress(aiohttp.ClientError):
                    await session.post(replica.url + CHAT_PATH, json=body, headers={"X-Request-Id": "one"})
        before, _ = both.calls()
        status, answer = await both.ask(body, stream=stream)
        if each == 1:
            assert status == 200
            if not stream:
                assert text_of(answer) == answer_to(text, None, max_tokens=16)[0]
            assert both.calls() == (before + 1, 2)
            assert await both.counted() == {"decode_failed": 1}
        assert both.reads() == [1], "a KV cache is read once"
        assert both.calls()[0] == before + 1, "and not made again"


async def test_a_kv_cache_that_cannot_be_read_shuts_nobody_who_decodes() -> None:
    """As a vLLM that is to fail where it cannot load one."""
    async with pools(decode=FAILING, each=2, routing="round_robin") as both:
        both.decode[1].script = SCRIPT
        for _ in range(12):
            assert (await both.ask())[0] == 200
        failed = calls(both.decode[:1])
        assert failed > 3
        assert both.served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}
        assert (await both.counted())["decode_failed"] == failed
        assert both.reads() == [1] * 12


async def test_without_a_server_that_prefills_from_the_start_the_others_do_both() -> None:
    async with FakeReplica(SCRIPT) as replica:
        away = f"http://127.0.0.1:{free_port()}"
        async with serving(spec_of([replica.url], engine={"prefill": away})) as served:
            both = Pools(served, (), (replica,))
            for _ in range(3):
                assert (await both.ask())[0] == 200
            assert await both.counted() == {"no_server": 3}
            assert served.gateway.health()[0] == 200


async def test_a_list_of_servers_that_cannot_be_read_is_not_waited_for(tmp_path: Path) -> None:
    async with FakeReplica(SCRIPT) as replica:
        missing = {"file": str(tmp_path / "missing")}
        async with serving(spec_of([replica.url], engine={"prefill": missing})) as served:
            assert served.gateway._prefill is not None
            prefill = served.gateway._prefill
            await until(lambda: bool(prefill.fault))
            both = Pools(served, (), (replica,))
            assert (await both.ask())[0] == 200
            assert await both.counted() == {"no_server": 1}


async def test_a_server_of_another_model_gets_no_prompts() -> None:
    async with pools(prefill=replace(SCRIPT, models=("other",))) as both:
        assert (await both.ask())[0] == 200
        assert both.calls() == (0, 1)
        assert await both.counted() == {"no_server": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_is_killed_in_a_prefill_costs_no_answer(stream: bool) -> None:
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


async def test_where_one_of_two_servers_is_killed_in_a_prefill_the_other_does_it() -> None:
    async with pools(prefill=HANGING, each=2, routing="round_robin") as both:
        both.prefill[1].script = SCRIPT
        waiting = [asyncio.ensure_future(both.ask()) for _ in range(6)]
        await until(lambda: both.prefill[0].report().in_flight == 3 and both.calls()[1] == 3)
        await both.prefill[0].stop()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 6
        assert await both.counted() == {"transferred": 6}
        assert both.reads() == [1] * 6


async def test_a_replica_that_dies_while_a_prompt_is_prefilled_for_it_costs_no_answer() -> None:
    slow = replace(SCRIPT, delay=Fixed(0.5))
    async with pools(prefill=slow, each=2, routing="round_robin") as both:
        waiting = [asyncio.ensure_future(both.ask()) for _ in range(4)]
        await until(lambda: calls(both.prefill) == 4)
        await both.decode[0].stop()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 4
        assert both.decode[1].report().completed == 4
        assert set(both.reads()) == {1}


async def test_a_client_that_leaves_ends_its_prefill() -> None:
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


async def test_an_answer_that_is_over_its_time_ends_its_prefill() -> None:
    async with pools(prefill=HANGING, relay={"first_byte_s": 0.2}) as both:
        assert (await both.ask(stream=True))[0] == 200
        await until(lambda: both.prefill[0].report().aborted == 1)
        assert await both.counted() == {"prefill_failed": 1}


async def test_the_prompt_of_a_refused_request_costs_its_key_what_was_prefilled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a client could have prompts prefilled for nothing."""
    monkeypatch.setenv("GATEWAY_KEY", "sesame")
    keys = [{"name": "a", "key": {"env": "GATEWAY_KEY"}, "tokens_per_min": 1000}]
    async with FakeReplica(SCRIPT) as prefill, FakeReplica(replace(SCRIPT, max_model_len=200)) as decode:
        spec = spec_of([decode.url], engine={"prefill": prefill.url}, keys=keys)
        async with serving(spec) as served:
            body = CHAT_OF | {"messages": [{"role": "user", "content": "rain " * 150}], "max_tokens": 100}
            statuses = []
            for _ in range(20):
                headers = {"authorization": "Bearer sesame"}
                async with served.session.post(
                    served.url + CHAT_PATH, json=body, headers=headers
                ) as response:
                    statuses.append(response.status)
            assert set(statuses) == {400, 429}
            assert calls([prefill]) == statuses.count(400)


async def test_a_body_and_that_of_its_prefill_both_take_room() -> None:
    body = CHAT_OF | {"messages": [{"role": "user", "content": "x" * 600_000}]}
    async with pools(limits={"max_held_bytes": 1_000_000}) as both:
        status, answer = await both.ask(body)
        assert (status, orjson.loads(answer)["error"]["code"]) == (503, "gateway_full")
        assert (await both.ask(body, n=2))[0] != 503
        assert both.served.gateway._room.held == 0


async def test_health_and_metrics_show_both_pools() -> None:
    async with pools() as both:
        health = both.served.gateway.health()[1]
        assert (health["prefill"], health["replicas"]) == ({"available": 1, "known": 1},) * 2
        for replica in (*both.prefill, *both.decode):
            line = f'forebay_gateway_replica_available{{replica="{replica.url}"}}'
            assert await both.served.metric(line) == 1


async def test_the_log_says_at_the_start_which_servers_cannot_prefill(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeReplica(SCRIPT) as decode, FakeReplica(replace(SCRIPT, gives_kv_cache=False)) as prefill:
        spec = spec_of([decode.url], engine={"prefill": prefill.url})
        async with serving(spec) as served:
            await look_at_prefill(served.gateway, spec)
            assert f"engine.prefill: {prefill.url} gives no KV cache" in caplog.text
            caplog.clear()
            prefill.script = SCRIPT
            await look_at_prefill(served.gateway, spec)
            await look_at_prefill(served.gateway, spec_of([decode.url]))
            assert not caplog.records


async def test_without_a_model_it_is_said_once_a_server_that_decodes_is_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    port = free_port()
    async with FakeReplica(replace(SCRIPT, gives_kv_cache=False)) as prefill:
        spec = spec_of([f"http://127.0.0.1:{port}"], engine={"prefill": prefill.url})
        async with serving(spec, wait_s=0.0) as served:
            looking = asyncio.ensure_future(look_at_prefill(served.gateway, spec))
            await asyncio.sleep(0)
            assert not looking.done()
            async with FakeReplica(SCRIPT, port=port):
                await looking
    assert f"engine.prefill: {prefill.url} gives no KV cache" in caplog.text


async def test_a_mistake_in_looking_at_servers_that_prefill_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **settings: Any) -> str:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(serve, "describe_prefill", fail)
    async with pools() as both:
        spec = spec_of([both.decode[0].url], engine={"prefill": both.prefill[0].url})
        await look_at_prefill(both.served.gateway, spec)
    assert "a mistake of ours" in caplog.text


@settings(max_examples=10)
@given(
    shares=st.lists(
        st.tuples(st.sampled_from(["500", "503", "429", "refuse"]), st.floats(0, 0.2)),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    seed=st.integers(0, 1000),
)
def test_whatever_fails_no_kv_cache_is_read_twice_and_no_answer_differs(
    shares: list[tuple[str, float]], seed: int
) -> None:
    async def main() -> None:
        faulty = replace(SCRIPT, faults=Faults(tuple(shares), seed), retry_after_s=0.01)
        async with pools(prefill=faulty, decode=faulty, each=2) as both:
            told = text_of(await alone(CHAT_OF, CHAT_PATH))
            answers = await asyncio.gather(*(both.ask(id=f"event {number}") for number in range(20)))
            assert {text_of(answer) for status, answer in answers if status == 200} <= {told}
            assert set(both.reads()) <= {1}

    asyncio.run(main())


def test_a_body_for_each_of_the_two() -> None:
    body = b'{"model":"m","max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"top_p":1}\n '
    assert orjson.loads(prefill_body(body)) == {
        "model": "m",
        "max_tokens": 1,
        "top_p": 1,
        KV_TRANSFER: PREFILL_PARAMS,
    }
    assert decode_body(body, {"a": [1]}) == body.rstrip()[:-1] + b',"kv_transfer_params":{"a":[1]}}'


def test_where_a_kv_cache_is() -> None:
    assert kv_transfer_in(b'{"kv_transfer_params":{"a":1}}', "u") == {"a": 1}
    assert kv_transfer_in(b'{"kv_transfer_params":null}', "u") is None
    assert kv_transfer_in(b"{}", "u") is None
    deep = b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH
    for wrong in (b"", b"[]", b'{"kv_transfer_params":1}', b'{"kv_transfer_params":' + deep + b"}"):
        with pytest.raises(ProtocolViolation, match="kv_transfer_params"):
            kv_transfer_in(wrong, "u")
