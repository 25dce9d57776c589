"""Samples before, during and after a block; a failing source ends nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping

import pytest

from forebay.bench.records import EngineSample
from forebay.bench.sampling import EngineSignals, Sampler
from forebay.engine.client import HttpEngine
from forebay.errors import LaunchError, SettingError
from forebay.records import Request
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

FULL = """
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_waiting{engine="0"} 2
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prompt_tokens_total{engine="0"} %d
vllm:generation_tokens_total{engine="0"} 50
vllm:num_preemptions_total{engine="0"} 4
vllm:prefix_cache_queries_total{engine="0"} %d
vllm:prefix_cache_hits_total{engine="0"} %d
"""


def test_counters_begin_with_the_first_reading_and_gauges_do_not() -> None:
    texts = iter(
        [FULL % (100, 100, 10), FULL % (300, 300, 60), FULL % (300, 300, 60), FULL % (340, 340, 100)]
    )
    signals = EngineSignals(lambda: next(texts))
    gauges = {"running": 3.0, "waiting": 2.0, "kv_cache_usage": 0.25}
    still = {"generation_tokens": 0.0, "preemptions": 0.0}
    grown = {"prompt_tokens": 200.0, "prefix_cache_queries": 200.0, "prefix_cache_hits": 50.0}
    assert signals() == {
        **gauges,
        **still,
        "prompt_tokens": 0.0,
        "prefix_cache_queries": 0.0,
        "prefix_cache_hits": 0.0,
    }
    assert signals() == {**gauges, **still, **grown, "prefix_cache_hit_share": 0.25}
    # Nothing came since: no share of nothing.
    assert signals() == {**gauges, **still, **grown}
    assert signals()["prefix_cache_hit_share"] == 1.0


def test_unreported_engine_metrics_are_omitted() -> None:
    texts = iter(["", "vllm:gpu_cache_usage_perc 0.5\n", "no metrics <at> all"])
    signals = EngineSignals(lambda: next(texts))
    assert [signals(), signals(), signals()] == [{}, {"kv_cache_usage": 0.5}, {}]


async def test_a_servers_metrics_are_read_over_http() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0), cache_blocks=100, block_chars=4)) as replica:
        signals = EngineSignals.at(replica.url + "/")
        assert signals()["generation_tokens"] == 0.0
        engine = HttpEngine(replica.url)
        for index in range(2):
            await engine.complete(Request(id=f"r{index}", model="fake", prompt="word " * 8), timeout_s=10)
        await engine.close()
        found = signals()
    assert found["generation_tokens"] > 0
    assert found["prefix_cache_hits"] > 0
    assert 0 < found["prefix_cache_hit_share"] < 1
    assert found["running"] == 0


def test_a_missing_server_or_one_without_metrics_raises_os_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="refused"):
            EngineSignals.at(f"http://127.0.0.1:{free.getsockname()[1]}")()
    with ReplicaThread(ReplicaScript(absent=("/metrics",))) as replica, pytest.raises(OSError, match="404"):
        EngineSignals.at(replica.url)()
    with pytest.raises(SettingError):
        EngineSignals.at("http://user:password@host:8000")


class Ticks:
    """Waits that end at once, a given number of times; then only with the block."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = threading.Event()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        assert seconds == 0.5
        if self._left:
            self._left -= 1
            return False
        self.done.set()
        return ended.wait()


def test_samples_are_in_seconds_after_the_run_began() -> None:
    moments = iter([1767225599.5, 1767225600.0, 1767225600.5, 1767225601.25])
    values = iter([{"running": 0.0}, {"running": 1.0}, {"running": 2.0}, {"running": 0.0}])
    ticks = Ticks(2)
    with Sampler(
        [lambda: next(values)], every_s=0.5, now_s=lambda: next(moments), wait=ticks.wait
    ) as sampler:
        ticks.done.wait()
    assert sampler.samples("2026-01-01T00:00:00.250000+00:00") == (
        EngineSample(-0.75, {"running": 0.0}),
        EngineSample(-0.25, {"running": 1.0}),
        EngineSample(0.25, {"running": 2.0}),
        EngineSample(1.0, {"running": 0.0}),
    )


def test_missing_values_are_taken_from_another_source() -> None:
    def gone() -> Mapping[str, float]:
        raise ConnectionRefusedError

    def ended() -> Mapping[str, float]:
        raise LaunchError("the process 7, which was measured, has ended")

    ticks = Ticks(0)
    with Sampler(
        [gone, lambda: {"a": 1.0}, ended], every_s=0.5, now_s=lambda: 0.0, wait=ticks.wait
    ) as sampler:
        pass
    assert [dict(each.values) for each in sampler.samples("1970-01-01T00:00:00+00:00")] == [
        {"a": 1.0},
        {"a": 1.0},
    ]
    with Sampler([gone], every_s=0.5, wait=Ticks(0).wait) as sampler:
        pass
    assert sampler.samples("1970-01-01T00:00:00+00:00") == ()
