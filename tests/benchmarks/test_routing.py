"""The comparison of policies, and the overload, on a small generated trace."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace

import orjson
import pytest
from benchmarks.overload import CONSTANTS, measure_overload, overload_arrivals
from benchmarks.routing import (
    SIZES,
    EnginesOptions,
    RoutingReport,
    measure_engines,
    measure_routing,
    passed,
    requests_of,
)

from forebay.planning.simulate import Scenario
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

TRACE = PoissonArrivals(150, 20.0, 1500.0, 30.0, prefixes=4, prefix_tokens=1024, seed=1).make()
SCENARIO = Scenario(TRACE, LLAMA_8B, 2)


def report() -> RoutingReport:
    return measure_routing(SCENARIO, (0.5, 0.9), ("round_robin", "expected_ttft"))


def test_default_passes_only_if_it_is_the_best() -> None:
    found = report()
    mine, theirs = found.policies["expected_ttft"], found.policies["round_robin"]
    assert found.passed == all(
        a.goodput >= b.goodput and (a.ttft_mean_s <= 0.9 * b.ttft_mean_s or load != 0.9)
        for a, b, load in zip(mine, theirs, found.loads, strict=True)
    )
    worse = [replace(one, goodput=one.goodput - 0.001) for one in theirs]
    swapped = replace(found, policies={"expected_ttft": worse, "round_robin": theirs})
    assert not swapped.passed
    slow = [replace(one, goodput=1.0) for one in theirs]
    assert not replace(found, policies={"expected_ttft": slow, "round_robin": theirs}).passed
    alone = replace(found, policies={"expected_ttft": mine, "expected_ttft_at_once": theirs})
    assert alone.comparison() == []


def test_an_overload_is_twice_the_capacity_and_then_half() -> None:
    arrivals = overload_arrivals(TRACE, 10.0, seed=3)
    early = sum(one.arrived_s < 120 for one in arrivals)
    assert early == pytest.approx(2400, rel=0.1)
    assert len(arrivals) - early == pytest.approx(1200, rel=0.15)
    assert arrivals == overload_arrivals(TRACE, 10.0, seed=3)


def test_admission_handles_an_overload_better_than_others() -> None:
    found = measure_overload(SCENARIO)
    ways = found["ways"]
    admission = ways["admission"]
    others = {"aimd", "saturation", *(f"fixed_{number}" for number in CONSTANTS)}
    assert set(ways) == {"admission", "patient", *others}
    assert admission["goodput_of_capacity"] > 0.9
    assert admission["tokens_of_capacity"] > 0.9
    assert admission["engine_waiting_mean"] < 3
    assert admission["unanswered"] == 0
    assert admission["given_up"] + admission["answered"] == found["requests"]
    for other in others:
        assert admission["goodput_of_capacity"] > ways[other]["goodput_of_capacity"]
    patient = ways["patient"]
    assert patient["answered"] == found["requests"]
    assert patient["cleared_s"] < 1.3 * patient["arithmetic_s"]


QUICK = EnginesOptions(groups=4, per_group=5, answer_tokens=2, concurrency=4, rounds=1)
SCRIPT = ReplicaScript(delay=Fixed(0.0), prefill_s_per_char=2e-6, slots=2, block_chars=512, cache_blocks=56)
"""The cache holds the prefixes of two of four groups."""


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


def test_groups_share_a_prefix_that_no_other_run_has() -> None:
    options = replace(QUICK, prefix_words=100)
    first, again, other = (requests_of(name, "m", options) for name in ("a", "a", "b"))
    assert first == again
    prompts = [request.prompt or "" for request in first]
    assert len(set(prompts)) == 20
    assert len({prompt[:500] for prompt in prompts}) == 4
    assert not {prompt[:500] for prompt in prompts} & {(request.prompt or "")[:500] for request in other}


@pytest.mark.parametrize(
    ("ttft", "throughput", "is_passed"), [(0.5, 1.3, True), (0.51, 2.0, False), (0.1, 1.29, False)]
)
def test_promised_targets(ttft: float, throughput: float, is_passed: bool) -> None:
    beside = {"ttft_p50_ratio": ttft, "throughput_ratio": throughput}
    assert passed({"comparison": {"round_robin": beside}}) is is_passed
    assert passed({"comparison": {"random": beside}})


def test_a_report_has_every_figure_per_policy_and_load() -> None:
    document = orjson.loads(orjson.dumps(report().document()))
    assert document["loads"] == [0.5, 0.9]
    assert list(document["policies"]) == ["round_robin", "expected_ttft"]
    for found in document["policies"].values():
        assert [one["load"] for one in found] == [0.5, 0.9]
        for one in found:
            assert {"goodput", "ttft_mean_s", "ttft_p99_s", "hit_share", "imbalance"} <= one.keys()
            assert 0 <= one["goodput"] <= 1
            assert 0 <= one["hit_share"] < 1
    assert set(document["decision_us"]) == {str(size) for size in SIZES}
    assert [entry["load"] for entry in document["comparison"]] == [0.5, 0.9]
