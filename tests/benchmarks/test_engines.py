"""Routing measured on engines over HTTP: scripted ones with a prefix cache."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import pytest
from benchmarks.routing import EnginesOptions, measure_engines, passed, requests_of

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

QUICK = EnginesOptions(groups=4, per_group=5, answer_tokens=2, concurrency=4, rounds=1)
SCRIPT = ReplicaScript(delay=Fixed(0.0), prefill_s_per_char=2e-6, slots=2, block_chars=512, cache_blocks=56)
"""The cache holds the prefixes of two of four groups."""


def test_groups_share_a_prefix_that_no_other_run_has() -> None:
    options = replace(QUICK, prefix_words=100)
    first, again, other = (requests_of(name, "m", options) for name in ("a", "a", "b"))
    assert first == again
    prompts = [request.prompt or "" for request in first]
    assert len(set(prompts)) == 20
    assert len({prompt[:500] for prompt in prompts}) == 4
    assert not {prompt[:500] for prompt in prompts} & {(request.prompt or "")[:500] for request in other}


def test_policies_are_measured_side_by_side() -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(ReplicaThread(SCRIPT)).url for _ in range(2)]
        report = asyncio.run(measure_engines(urls, QUICK))
    mine, others = report["policies"]["expected_ttft"], report["policies"]["round_robin"]
    assert mine["requests"] == others["requests"] == 20
    assert sum(mine["by_replica"]) == sum(others["by_replica"]) == 20
    assert others["by_replica"] == (10, 10)
    # Every group is cold at least once at one replica, in round robin at both.
    assert 0 < others["hit_share"] <= 0.8
    assert 0 < mine["hit_share"] <= 0.8
    assert 0 < mine["ttft_p50_s"] <= mine["ttft_p99_s"]
    assert report["comparison"].keys() == {"round_robin"}


@pytest.mark.parametrize(
    ("ttft", "throughput", "is_passed"), [(0.5, 1.3, True), (0.51, 2.0, False), (0.1, 1.29, False)]
)
def test_what_is_promised(ttft: float, throughput: float, is_passed: bool) -> None:
    beside = {"ttft_p50_ratio": ttft, "throughput_ratio": throughput}
    assert passed({"comparison": {"round_robin": beside}}) is is_passed
    assert passed({"comparison": {"random": beside}})
