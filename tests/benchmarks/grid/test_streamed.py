from __future__ import annotations

import pytest
from benchmarks.grid.engines import SpreadTarget
from benchmarks.grid.streamed import sample_figures

from forebay.bench.client import measure
from forebay.bench.load.schedules import ClosedLoop, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.records import EngineSample
from forebay.bench.targets.openai import OpenAiTarget
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


def test_means_and_largest_values_are_those_of_the_run() -> None:
    samples = [
        EngineSample(-1.0, {"running": 9.0, "preemptions": 1.0}),
        EngineSample(1.0, {"running": 2.0, "waiting": 0.0, "kv_cache_usage": 0.1, "engine_cores": 1.0}),
        EngineSample(2.0, {"running": 4.0, "waiting": 3.0, "kv_cache_usage": 0.3, "engine_memory_mb": 7.0}),
        EngineSample(9.0, {"running": 0.0, "preemptions": 5.0}),
    ]
    assert sample_figures(samples, 5.0) == {
        "running_mean": 3.0,
        "running_max": 4.0,
        "waiting_mean": 1.5,
        "waiting_max": 3.0,
        "kv_cache_usage_mean": pytest.approx(0.2),
        "kv_cache_usage_max": 0.3,
        "engine_cores_mean": 1.0,
        "engine_memory_mb_max": 7.0,
        "preemptions": 4.0,
    }


def test_several_engines_are_added_up() -> None:
    samples = [
        EngineSample(
            1.0,
            {
                "engine0_running": 2.0,
                "engine1_running": 3.0,
                "engine0_kv_cache_usage": 0.2,
                "engine1_kv_cache_usage": 0.6,
                "engine0_cores": 0.9,
                "engine1_cores": 0.8,
                "run_cores": 0.3,
            },
        )
    ]
    found = sample_figures(samples, 5.0)
    assert found["running_mean"] == 5.0
    assert found["kv_cache_usage_max"] == 0.6
    assert found["engine_cores_mean"] == pytest.approx(1.7)
    assert found["run_cores_mean"] == 0.3


def test_requests_alternate_between_replicas() -> None:
    script = ReplicaScript(delay=Fixed(0.001))
    with ReplicaThread(script) as first, ReplicaThread(script) as second:
        target = SpreadTarget([OpenAiTarget(first.url), OpenAiTarget(second.url)])
        probes = first.report().completed
        run = measure(target, make_load(ClosedLoop(2), RandomTokens(Exactly(8), Exactly(4)), 9))
        seen = [first.report().completed - probes, second.report().completed - probes]
    assert all(record.answered for record in run.records)
    # Each was probed once.
    assert seen == [5 + 1, 4 + 1]
    assert target.name == f"{first.url}/v1/completions, {second.url}/v1/completions"


def test_the_share_of_the_prefix_cache_is_that_of_the_whole_run() -> None:
    def sample(at_s: float, queries: float, hits: float) -> EngineSample:
        return EngineSample(at_s, {"prefix_cache_queries": queries, "prefix_cache_hits": hits})

    found = sample_figures([sample(0, 100, 0), sample(1, 300, 50), sample(2, 500, 300)], 2.0)
    assert found == {"prefix_hit_share": 300 / 400}
    assert sample_figures([], 1.0) == {}
