"""The comparison of policies, and the overload, on a small generated trace."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from benchmarks.overload import CONSTANTS, measure_overload, overload_arrivals
from benchmarks.routing import SIZES, RoutingReport, decision_us, measure_routing

from forebay.planning.simulate import Scenario
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals

TRACE = PoissonArrivals(150, 20.0, 1500.0, 30.0, prefixes=4, prefix_tokens=1024, seed=1).make()
SCENARIO = Scenario(TRACE, LLAMA_8B, 2)


def report() -> RoutingReport:
    return measure_routing(SCENARIO, (0.5, 0.9), ("round_robin", "expected_ttft"))


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


def test_the_default_passes_only_where_it_is_the_best() -> None:
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


def test_a_decision_has_a_price() -> None:
    assert decision_us(3, decisions=20) > 0


def test_an_overload_is_twice_the_capacity_and_then_half() -> None:
    arrivals = overload_arrivals(TRACE, 10.0, seed=3)
    early = sum(one.arrived_s < 120 for one in arrivals)
    assert early == pytest.approx(2400, rel=0.1)
    assert len(arrivals) - early == pytest.approx(1200, rel=0.15)
    assert arrivals == overload_arrivals(TRACE, 10.0, seed=3)


def test_admission_takes_an_overload_better_than_others() -> None:
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
