from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay import errors
from forebay.clock import Clock
from forebay.engine.load import ReplicaCounters, parse_cache_tokens, parse_load_header, parse_metrics
from forebay.engine.replica import HttpReplica, ServedModel, list_models
from forebay.records import Message, ReplicaLoad, Request
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

KEY = "sk-very-secret-key"


@asynccontextmanager
async def answering(body: bytes, status: int = 200) -> AsyncIterator[str]:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=body, status=status)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def replica_at(url: str, clock: Clock | None = None) -> AsyncIterator[HttpReplica]:
    replica = HttpReplica(url, clock=clock)
    try:
        yield replica
    finally:
        await replica.close()


async def test_models_of_a_replica() -> None:
    async with FakeReplica(ReplicaScript(models=("a", "b"), max_model_len=2048)) as replica:
        assert await list_models(replica.url) == (ServedModel("a", 2048), ServedModel("b", 2048))


@asynccontextmanager
async def counting_pieces(
    owner: str, *, refuses: bool = False
) -> AsyncIterator[tuple[HttpReplica, list[object]]]:
    """A server that gathers tokens as vLLM does, and the `stream_interval` of each request."""
    asked: list[object] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m", "owned_by": owner}]})
        document = await request.json()
        asked.append(document.get("stream_interval"))
        if refuses and "stream_interval" in document:
            message = {"message": "Extra inputs are not permitted", "type": "BadRequestError", "code": 400}
            return web.json_response({"error": message}, status=400)
        if document["messages"][0]["content"] == BAD:
            return web.json_response({"error": {"message": "no such role", "code": 400}}, status=400)
        at, size, events = 0, 1, b""
        while at < TOKENS:
            text = "a" * min(size, TOKENS - at)
            events += b"data: %b\n\n" % orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
            at, size = at + size, document.get("stream_interval", 1)
        usage = {"prompt_tokens": 1, "completion_tokens": TOKENS}
        events += b"data: %b\n\n" % orjson.dumps({"choices": [], "usage": usage})
        headers = {"Content-Type": "text/event-stream"}
        return web.Response(body=events + b"data: [DONE]\n\n", headers=headers)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with replica_at(f"http://127.0.0.1:{runner.addresses[0][1]}", ManualClock()) as replica:
            yield replica, asked
    finally:
        await runner.cleanup()


TOKENS = 40
BAD = "a bad one"


async def test_vllm_gathers_the_tokens_of_later_answers() -> None:
    request = Request("r", "m", messages=(Message("user", "hi"),))
    async with counting_pieces("vllm") as (replica, asked):
        await replica.list_models()
        pieces: list[list[int]] = []
        for _ in range(3):
            pieces.append([])
            answer = await replica.engine.complete(request, timeout_s=600, on_content=pieces[-1].append)
            assert answer.text == "a" * TOKENS
    assert asked == [None, 5, 5]
    assert [len(each) for each in pieces] == [40, 9, 9]


async def test_a_server_that_refuses_the_field_is_not_asked_again() -> None:
    request = Request("r", "m", messages=(Message("user", "hi"),))
    async with counting_pieces("vllm", refuses=True) as (replica, asked):
        await replica.list_models()
        for _ in range(3):
            answer = await replica.engine.complete(request, timeout_s=600)
            assert answer.text == "a" * TOKENS
            await replica.list_models()
    assert asked == [None, 5, None, None]


async def test_a_bad_request_is_sent_once_more_and_refused() -> None:
    async with counting_pieces("vllm") as (replica, asked):
        await replica.list_models()
        await replica.engine.complete(Request("r", "m", messages=(Message("user", "hi"),)), timeout_s=600)
        bad = Request("r", "m", messages=(Message("user", BAD),))
        with pytest.raises(errors.BadRequest, match="no such role"):
            await replica.engine.complete(bad, timeout_s=600)
    assert asked == [None, 5, None]


async def test_other_servers_are_not_asked_to_gather() -> None:
    request = Request("r", "m", messages=(Message("user", "hi"),))
    async with counting_pieces("somebody") as (replica, asked):
        await replica.list_models()
        for _ in range(2):
            await replica.engine.complete(request, timeout_s=600)
    assert asked == [None, None]


async def test_server_without_a_context_length() -> None:
    async with answering(b'{"object": "list", "data": [{"id": "gpt"}]}') as url:
        assert await list_models(url + "/v1/") == (ServedModel("gpt", None),)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"id": 1}]}', b"\xff"]
)
async def test_missing_model_list_is_a_protocol_violation(body: bytes) -> None:
    async with answering(body) as url:
        with pytest.raises(errors.ProtocolViolation):
            await list_models(url)


async def test_wrong_key_is_unauthorized_and_not_shown() -> None:
    async with FakeReplica(ReplicaScript(api_key="other")) as replica:
        with pytest.raises(errors.Unauthorized) as caught:
            await list_models(replica.url, api_key=KEY)
        assert await list_models(replica.url, api_key="other")
    assert KEY not in str(caught.value)


async def test_closed_port_is_unreachable() -> None:
    async with FakeReplica() as fake:
        url = fake.url
    with pytest.raises(errors.Unreachable):
        await list_models(url)
    async with replica_at(url) as replica:
        with pytest.raises(errors.Unreachable):
            await replica.check_health()


async def test_too_large_list_is_a_protocol_violation() -> None:
    async with answering(b" " * (2 << 20)) as url:
        with pytest.raises(errors.ProtocolViolation, match="more than"):
            await list_models(url)


async def test_load_and_counters() -> None:
    async with (
        FakeReplica(ReplicaScript(delay=Fixed(0.0))) as fake,
        replica_at(fake.url, ManualClock(monotonic_s=5.0)) as replica,
    ):
        await replica.engine.complete(Request("r1", "fake", prompt="x" * 40), timeout_s=30)
        load, counters = await replica.fetch_metrics()
    assert load == ReplicaLoad(5.0, 0.0, 0.0, 0.0)
    assert counters == ReplicaCounters(10.0, 4.0, 0.0, 0.0, 0.0)


async def test_replica_without_metrics_raises_its_status() -> None:
    async with answering(b"", status=404) as url, replica_at(url) as replica:
        with pytest.raises(errors.ModelNotFound):
            await replica.fetch_metrics()


async def test_health() -> None:
    async with FakeReplica() as fake, replica_at(fake.url) as replica:
        assert await replica.check_health()


@pytest.mark.parametrize("status", [200, 401, 404])
async def test_server_without_a_health_path_is_healthy(status: int) -> None:
    async with answering(b"", status) as url, replica_at(url) as replica:
        assert await replica.check_health() is (status == 200)


@pytest.mark.parametrize(("status", "error"), [(500, errors.ServerFault), (503, errors.Overloaded)])
async def test_failing_server_is_unhealthy(status: int, error: type[Exception]) -> None:
    async with answering(b"", status) as url, replica_at(url) as replica:
        with pytest.raises(error):
            await replica.check_health()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>log in</html>"),
        (200, b'{"status": "ok"}'),
        (307, b""),
        (204, b""),
        (405, b""),
        (501, b""),
    ],
)
async def test_probe_fails_if_something_else_answers(status: int, body: bytes) -> None:
    async with answering(body, status) as url, replica_at(url) as replica:
        with pytest.raises((errors.ProtocolViolation, errors.ModelNotFound), match=f"answered {status}"):
            await replica.probe("m")


@pytest.mark.parametrize(("status", "body"), [(200, b'{"choices": []}'), (200, b'{"data": []}'), (400, b"")])
async def test_probe_passes_if_an_engine_answers_or_rejects_only_it(status: int, body: bytes) -> None:
    async with answering(body, status) as url, replica_at(url) as replica:
        await replica.probe("m")


async def test_cache_size_is_queried() -> None:
    config = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
    async with FakeReplica(ReplicaScript(metrics=config)) as fake, replica_at(fake.url) as replica:
        assert await replica.fetch_cache_tokens() == 1600
    async with FakeReplica(ReplicaScript()) as fake, replica_at(fake.url) as replica:
        assert await replica.fetch_cache_tokens() is None


VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 700.0
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 40.0
process_resident_memory_bytes 1.0
"""


def test_load_and_counters_of_vllm() -> None:
    load, counters = parse_metrics(VLLM, observed_s=7.0)
    assert load == ReplicaLoad(7.0, 3.0, 2.0, 0.25)
    assert counters == ReplicaCounters(1.5e6, 700.0, 0.0, 100.0, 40.0)


def test_engines_add_up_and_the_fullest_cache_counts() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {i}\nvllm:kv_cache_usage_perc{{engine="{i}"}} 0.{i}\n'
        for i in (1, 3, 2)
    )
    load, _ = parse_metrics(text, observed_s=0.0)
    assert (load.running, load.waiting, load.kv_cache_usage) == (6.0, None, 0.3)


def test_older_name_of_the_cache_usage() -> None:
    assert (
        parse_metrics('vllm:gpu_cache_usage_perc{a="b"} 0.5 1700000000', observed_s=0.0)[0].kv_cache_usage
        == 0.5
    )


def test_label_may_hold_braces_and_quotes() -> None:
    text = 'vllm:num_requests_running{model_name="a\\"} 9} b"} 4.0\n'
    assert parse_metrics(text, observed_s=0.0)[0].running == 4.0


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x", ""])
def test_invalid_amount_is_unknown(value: str) -> None:
    assert parse_metrics(f"vllm:num_requests_running {value}\n", observed_s=0.0)[0].running is None


def test_empty_metrics_are_unknown() -> None:
    assert parse_metrics("", observed_s=1.0) == (ReplicaLoad(1.0), ReplicaCounters())


@given(st.text(alphabet='vllm:num_requests_running{}="\\ 0123456789.\n', max_size=300))
def test_any_text_is_parsed(text: str) -> None:
    load, _ = parse_metrics(text, observed_s=0.0)
    assert load.running is None or (math.isfinite(load.running) and load.running >= 0)


@given(st.floats(0, 1e9), st.floats(0, 1), st.text(alphabet='ab"\\{},=', max_size=10))
def test_written_header_is_read_back(waiting: float, usage: float, model: str) -> None:
    label = model.replace("\\", "\\\\").replace('"', '\\"')
    text = (
        f'vllm:num_requests_waiting{{model_name="{label}"}} {waiting}\n'
        f'vllm:kv_cache_usage_perc{{model_name="{label}"}} {usage}\n'
    )
    assert parse_metrics(text, observed_s=0.0)[0] == ReplicaLoad(0.0, None, waiting, usage)
    header = f"TEXT named_metrics.num_requests_waiting={waiting}, named_metrics.kv_cache_usage_perc={usage}"
    assert parse_load_header(header, observed_s=0.0) == ReplicaLoad(0.0, None, waiting, usage)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "TEXT ",
        "TEXT x=1",
        "JSON {}",
        "TEXT named_metrics.num_requests_waiting=many",
        "TEXT " + "a" * 5000,
    ],
)
def test_header_without_load_is_none(value: str | None) -> None:
    assert parse_load_header(value, observed_s=0.0) is None


@given(st.text())
def test_any_header_is_parsed(value: str) -> None:
    parse_load_header("TEXT " + value, observed_s=0.0)


CONFIG = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000"} 1.0\n'


def test_size_of_the_cache() -> None:
    assert parse_cache_tokens(VLLM + CONFIG) == 16_000
    assert parse_cache_tokens(CONFIG * 2) == 32_000, "of all engines"
    assert parse_cache_tokens(VLLM) is None
    assert parse_cache_tokens(CONFIG.replace('"1000"', '"None"')) is None
    assert parse_cache_tokens(CONFIG.replace("num_gpu_blocks", "num_gpu_blocks_override")) is None


@given(st.text(alphabet='vllm:cache_config_info{}",=block_size1 \n', max_size=200))
def test_cache_size_is_parsed_leniently(text: str) -> None:
    found = parse_cache_tokens(text)
    assert found is None or found > 0
