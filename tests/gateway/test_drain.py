"""The end: answers in flight are finished, new requests are told to go elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.testing.delays import Fixed
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.waiting import wait_until

from .conftest import CHAT, before, until

SLOW = ReplicaScript(delay=Fixed(0.0), token_s=0.3, chunks=4)


async def test_an_answer_in_flight_is_finished_and_new_ones_are_refused() -> None:
    async with before(SLOW) as (served, _):
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=CHAT | {"stream": True}) as response:
            first = await response.content.readany()
            served.server.begin_drain()
            async with served.session.get(served.url + "/health") as health:
                assert (health.status, (await health.json())["status"]) == (503, "draining")
            async with served.session.post(url, json=CHAT) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "draining"
            rest = await response.content.read()
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        await until(lambda: served.server.should_exit)


async def test_an_answer_that_outlives_the_grace_is_cut() -> None:
    forever = ReplicaScript(delay=Fixed(0.0), token_s=100.0, chunks=4)
    async with before(forever, drain={"grace_s": 0.1}) as (served, replicas):
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=CHAT | {"stream": True}) as response:
            await response.content.readany()
            served.server.begin_drain()
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
        await until(lambda: replicas[0].report().aborted == 1)


async def test_without_requests_it_ends_after_the_notice() -> None:
    async with before(drain={"notice_s": 0.2}) as (served, _):
        began_s = time.monotonic()
        served.server.begin_drain()
        await until(lambda: served.server.should_exit)
        assert time.monotonic() - began_s >= 0.2


async def test_a_second_signal_ends_it_at_once() -> None:
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


def test_sigterm_to_the_command() -> None:
    with ReplicaProcess(SLOW) as replica:
        command = [sys.executable, "-m", "forebay", "gateway", "--engine", replica.url, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ, text=True) as process:
            assert process.stdout is not None
            try:
                url = process.stdout.readline().split()[-1]
                body = orjson.dumps(CHAT | {"stream": True})
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{url}/v1/chat/completions", body, headers)
                with urllib.request.urlopen(request, timeout=400) as response:
                    assert response.readline()
                    process.send_signal(signal.SIGTERM)
                    wait_until(lambda: _status(url) == 503)
                    assert response.read().endswith(b"data: [DONE]\n\n")
                assert process.wait(60) == 0
            finally:
                process.kill()


def _status(url: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
