"""What a replica reports of itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.harness.clock import ManualClock

from forebay import errors
from forebay.clock import Clock
from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import HttpReplica, ServedModel, list_models
from forebay.records import ReplicaLoad, Request
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


async def test_the_models_that_a_replica_serves() -> None:
    async with FakeReplica(ReplicaScript(models=("a", "b"), max_model_len=2048)) as replica:
        assert await list_models(replica.url) == (ServedModel("a", 2048), ServedModel("b", 2048))


async def test_a_server_that_names_no_length() -> None:
    async with answering(b'{"object": "list", "data": [{"id": "gpt"}]}') as url:
        assert await list_models(url + "/v1/") == (ServedModel("gpt", None),)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"id": 1}]}', b"\xff"]
)
async def test_no_list_of_models_is_a_protocol_violation(body: bytes) -> None:
    async with answering(body) as url:
        with pytest.raises(errors.ProtocolViolation):
            await list_models(url)


async def test_a_wrong_key_is_unauthorized_and_not_shown() -> None:
    async with FakeReplica(ReplicaScript(api_key="other")) as replica:
        with pytest.raises(errors.Unauthorized) as caught:
            await list_models(replica.url, api_key=KEY)
        assert await list_models(replica.url, api_key="other")
    assert KEY not in str(caught.value)


async def test_nobody_there_is_unreachable() -> None:
    async with FakeReplica() as fake:
        url = fake.url
    with pytest.raises(errors.Unreachable):
        await list_models(url)
    async with replica_at(url) as replica:
        with pytest.raises(errors.Unreachable):
            await replica.check_health()


async def test_too_large_a_list_is_a_protocol_violation() -> None:
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


async def test_a_replica_without_metrics_is_an_error_of_its_status() -> None:
    async with answering(b"", status=404) as url, replica_at(url) as replica:
        with pytest.raises(errors.ModelNotFound):
            await replica.fetch_metrics()


async def test_health() -> None:
    async with FakeReplica() as fake, replica_at(fake.url) as replica:
        assert await replica.check_health()


@pytest.mark.parametrize("status", [200, 401, 404])
async def test_a_server_that_answers_is_well_though_it_has_no_such_path(status: int) -> None:
    async with answering(b"", status) as url, replica_at(url) as replica:
        assert await replica.check_health() is (status == 200)


@pytest.mark.parametrize(("status", "error"), [(500, errors.ServerFault), (503, errors.Overloaded)])
async def test_a_server_that_fails_is_ill(status: int, error: type[Exception]) -> None:
    async with answering(b"", status) as url, replica_at(url) as replica:
        with pytest.raises(error):
            await replica.check_health()


async def test_the_size_of_a_cache_is_asked_for() -> None:
    config = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'
    async with FakeReplica(ReplicaScript(metrics=config)) as fake, replica_at(fake.url) as replica:
        assert await replica.fetch_cache_tokens() == 1600
    async with FakeReplica(ReplicaScript()) as fake, replica_at(fake.url) as replica:
        assert await replica.fetch_cache_tokens() is None
