"""The end: answers in flight are finished, new requests are sent elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import aiohttp
import pytest

from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .conftest import CHAT, before, serving, spec_of, until
from .test_relay import EVENTS, recorder

pytestmark = pytest.mark.heavy


async def test_draining_finishes_answers_and_refuses_new_requests() -> None:
    gate = asyncio.Event()
    async with recorder([], [], gate=gate) as replica, serving(spec_of([replica])) as served:
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=CHAT | {"stream": True}) as response:
            first = await response.content.readany()
            assert not served.gateway._reader.draining
            served.server.begin_drain()
            assert served.gateway._reader.draining
            async with served.session.get(served.url + "/health") as health:
                assert (health.status, (await health.json())["status"]) == (503, "draining")
            async with served.session.post(url, json=CHAT) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "draining"
            assert not served.server.should_exit
            gate.set()
            rest = await response.content.read()
        assert first + rest == b"".join(EVENTS)
        await until(lambda: served.server.should_exit)


async def test_answer_beyond_the_grace_period_is_cut() -> None:
    forever = ReplicaScript(delay=Fixed(0.0), token_s=100.0, chunks=4)
    async with before(forever, drain={"grace_s": 0.1}) as (served, replicas):
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=CHAT | {"stream": True}) as response:
            await response.content.readany()
            served.server.begin_drain()
            last = await response.content.readuntil(b"cut_off")
            assert b"the gateway stops" in last
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
        await until(lambda: replicas[0].report().aborted == 1)


async def test_idle_gateway_ends_after_the_notice() -> None:
    async with before(drain={"notice_s": 0.2}) as (served, _):
        began_s = time.monotonic()
        served.server.begin_drain()
        await until(lambda: served.server.should_exit)
        assert time.monotonic() - began_s >= 0.2


async def test_second_signal_ends_the_gateway_at_once() -> None:
    async with before(ReplicaScript(delay=Fixed(600.0))) as (served, _):
        url = served.url + "/v1/chat/completions"
        waiting = asyncio.ensure_future(served.session.post(url, json=CHAT))
        await until(lambda: served.gateway.in_flight == 1)
        served.server.begin_drain()
        served.server.begin_drain()
        assert served.server.should_exit
        async with await waiting as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "draining"


async def test_sigterm_drains_the_command() -> None:
    gate = asyncio.Event()
    async with recorder([], [], gate=gate) as replica, aiohttp.ClientSession() as session:
        command = [sys.executable, "-m", "forebay", "gateway", "--engine", replica, "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            url = (await process.stdout.readline()).split()[-1].decode()

            async def healthy(status: int) -> None:
                told = None
                while told != status:
                    async with session.get(f"{url}/health") as health:
                        told = health.status

            await healthy(200)
            body = CHAT | {"stream": True}
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                first = await response.content.readany()
                process.send_signal(signal.SIGTERM)
                await healthy(503)
                gate.set()
                assert first + await response.content.read() == b"".join(EVENTS)
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
