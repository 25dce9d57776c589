"""A gateway in front of a fleet that has no replica, because it was scaled to zero."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from forebay.documents import check_document
from forebay.fleet import discovery
from forebay.gateway.peak_load import PEAK_LOAD
from forebay.gateway.spec import GatewaySpec
from forebay.ports import free_port
from forebay.testing.replica import FakeReplica

from .conftest import CHAT, QUICK, Served, serving, spec_of, until

pytestmark = pytest.mark.heavy

WAIT: dict[str, Any] = {"absent_s": None}


async def chat(served: Served, **more: Any) -> tuple[int, bytes]:
    async with served.session.post(served.url + "/v1/chat/completions", json=CHAT | more) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("model", ["fake", None], ids=["one model", "any model"])
async def test_first_request_waits_until_a_replica_has_started(model: str | None) -> None:
    port = free_port()
    spec = spec_of(
        [f"http://127.0.0.1:{port}"],
        engine={} if model is None else {"model": model},
        relay=WAIT,
        models={"short": "fake"},
    )
    async with serving(spec, wait_s=0.05) as served:
        asked = [asyncio.ensure_future(chat(served, model=name)) for name in ("fake", "short")]
        await until(lambda: served.gateway._fleet.waiting == 2)
        assert await served.metric(PEAK_LOAD) == 2
        async with FakeReplica(QUICK, port=port):
            assert [status for status, _ in await asyncio.gather(*asked)] == [200, 200]
        assert await served.metric("forebay_gateway_waiting") == 0


async def test_waiting_is_limited_by_the_requests_time() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    async with serving(spec_of([away], relay=WAIT, limits={"request_s": 0.2}), wait_s=0.05) as served:
        status, body = await chat(served)
    error = orjson.loads(body)["error"]
    assert (status, error["code"]) == (503, "no_replica")
    assert error["message"] == "no replica was up for the request within 0.2 s; try again later"


async def test_disconnected_client_no_longer_counts_as_waiting() -> None:
    async with serving(spec_of([f"http://127.0.0.1:{free_port()}"], relay=WAIT), wait_s=0.05) as served:
        asked = asyncio.ensure_future(chat(served))
        await until(lambda: served.gateway._fleet.waiting == 1)
        asked.cancel()
        await until(lambda: served.gateway._fleet.waiting == 0 and served.gateway.in_flight == 0)


async def test_model_that_no_replica_will_serve_starts_none() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    async with serving(spec_of([away], engine={"model": "fake"}, relay=WAIT), wait_s=0.05) as served:
        status, body = await chat(served, model="other")
    assert (status, orjson.loads(body)["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("relay", "status"), [(WAIT, 200), ({}, 503)])
async def test_without_replicas_health_is_ok_only_if_requests_wait(
    relay: dict[str, Any], status: int
) -> None:
    async with serving(spec_of([f"http://127.0.0.1:{free_port()}"], relay=relay), wait_s=0.05) as served:
        assert served.gateway.health()[0] == status
        assert served.gateway.health()[1]["status"] == "no_replica"
        served.gateway.drain()
        assert served.gateway.health()[0] == 503


async def test_request_without_replicas_waits_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file without a replica is refused, unlike the empty list of a Kubernetes service.
    monkeypatch.setattr(discovery, "read_replicas", lambda path: tuple(path.read_text().split()))
    path = tmp_path / "replicas"
    settings: dict[str, Any] = {"engine": {"file": str(path), "model": "fake"}, "relay": WAIT}
    async with FakeReplica(QUICK) as first, FakeReplica(QUICK) as second:
        path.write_text(first.url)
        spec = check_document(GatewaySpec, settings, what="gateway", name="gateway")
        async with serving(spec) as served:
            assert (await chat(served))[0] == 200
            path.write_text("")
            await until(lambda: not served.gateway._fleet.replicas())
            asked = asyncio.ensure_future(chat(served))
            await until(lambda: served.gateway._fleet.waiting == 1)
            path.write_text(second.url)
            assert (await asked)[0] == 200
