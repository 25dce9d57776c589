"""The gateway's log about servers that prefill, at its start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.harness.prefill_pools import SCRIPT, pools

from forebay.gateway import serve
from forebay.gateway.serve import look_at_prefill
from forebay.ports import free_port
from forebay.testing.replica import FakeReplica

from .conftest import serving, spec_of


async def test_servers_that_cannot_prefill_are_logged_at_the_start(
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


async def test_missing_model_is_reported_once_a_decoder_is_up(
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


async def test_error_while_checking_prefill_servers_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any, **settings: Any) -> str:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(serve, "describe_prefill", fail)
    async with pools() as both:
        spec = spec_of([both.decode[0].url], engine={"prefill": both.prefill[0].url})
        await look_at_prefill(both.served.gateway, spec)
    assert "a mistake of ours" in caplog.text
