"""Whole simulations: same seed, same result; figures that add up; limits that hold."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.admission import ImmediateDispatcher
from forebay.fleet.policies import make_policy
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate import NAMES, Scenario, Simulation, Slo, dispatcher_for, fleet_of
from forebay.planning.simulate.engine import LLAMA_8B, find_model
from forebay.planning.simulate.replica import SimRequest
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest

BUSY = PoissonArrivals(400, 40.0, 1500.0, 60.0, prefixes=6, prefix_tokens=2048, seed=5).make()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_result_bit_for_bit(name: str) -> None:
    one = Scenario(BUSY, LLAMA_8B, 4, seed=3).run(name, 1.0)
    other = Scenario(BUSY, LLAMA_8B, 4, seed=3).run(name, 1.0)
    assert asdict(one) == asdict(other)
    assert one.answered == len(BUSY)


@given(
    st.sampled_from(NAMES),
    st.integers(1, 5),
    st.sampled_from([17_000, 40_000, 500_000]),
    st.floats(0.0, 1.0),
)
def test_every_request_is_answered_once_and_tokens_take_their_time(
    name: str, replicas: int, kv_tokens: int, scale: float
) -> None:
    scenario = Scenario(BUSY[:120], replace(LLAMA_8B, kv_tokens=kv_tokens), replicas)
    requests = scenario.offer(scenario.trace, scale)
    simulation = scenario.serve(requests, dispatcher_for(name))
    step_s = LLAMA_8B.step_time.step_s
    for request in requests:
        assert request.first_token_s >= request.arrived_s + step_s
        assert request.finished_s >= request.first_token_s + (request.output_tokens - 1) * step_s - 1e-9
    assert simulation.fleet.requests.tolist() == [0.0] * replicas
    assert [replica.running + replica.waiting for replica in simulation.replicas] == [0] * replicas


def test_cached_prefixes_save_time() -> None:
    scenario = Scenario(BUSY, LLAMA_8B, 4)
    aware, blind = scenario.run("expected_ttft_at_once"), scenario.run("round_robin")
    assert aware.hit_share > blind.hit_share > 0.3
    assert aware.ttft_mean_s < blind.ttft_mean_s


@pytest.mark.heavy
def test_load_is_shared_by_a_thousand_replicas() -> None:
    trace = PoissonArrivals(3000, 2000.0, 800.0, 20.0, seed=2).make()
    found = Scenario(trace, LLAMA_8B, 1000).run("expected_ttft")
    assert found.goodput == 1.0
    assert found.imbalance < 10


def test_a_request_that_no_replica_can_hold_is_refused() -> None:
    with pytest.raises(SettingError, match="does not fit into the KV cache"):
        Scenario([TraceRequest(0.0, 600_000, 1)], LLAMA_8B).run("random")
    with pytest.raises(SettingError, match=r"expected one of llama-8b, qwen-32b; found 'x'"):
        find_model("x")
    with pytest.raises(SettingError, match="expected one of"):
        dispatcher_for("x")
    with pytest.raises(SettingError, match="arrivals"):
        PoissonArrivals(0)


def test_reports_reach_the_fleet() -> None:
    models = [LLAMA_8B] * 2
    fleet = fleet_of(models)
    simulation = Simulation(
        models, fleet, ImmediateDispatcher(fleet, make_policy("round_robin")), report_every_s=0.5
    )
    simulation.run([SimRequest(i, i * 0.3, RoutingRequest(2000), 50) for i in range(20)])
    assert fleet.reported_s.tolist() == pytest.approx([5.4, 5.4])
    assert fleet.reported_kv.min() > 0


def test_the_slo_allows_long_prompts_more() -> None:
    slo = Slo()
    alone_s = LLAMA_8B.alone_s(50_000)
    request = SimRequest(0, 10.0, RoutingRequest(50_000, due_s=slo.due_s(10.0, 50_000, LLAMA_8B)), 11)
    assert not slo.met(request), "never answered"
    request.first_token_s, request.finished_s = 10.0 + 5 * alone_s + 0.99, 10.0 + 5 * alone_s + 2.99
    assert slo.met(request)
    request.finished_s += 0.02
    assert not slo.met(request)
    request.first_token_s += 0.02
    assert not slo.met(request)


@given(st.integers(1, 100_000))
def test_a_single_prompt_takes_the_simulated_time(prompt: int) -> None:
    models = [LLAMA_8B]
    fleet = fleet_of(models)
    request = SimRequest(0, 0.0, RoutingRequest(prompt), 1)
    Simulation(models, fleet, ImmediateDispatcher(fleet, make_policy("round_robin"))).run([request])
    assert request.first_token_s == pytest.approx(LLAMA_8B.alone_s(prompt))
    assert not math.isnan(request.finished_s)


def test_another_seed_gives_another_result() -> None:
    runs = {Scenario(BUSY, LLAMA_8B, 4, seed=seed).run("random").ttft_mean_s for seed in range(3)}
    assert len(runs) == 3
    assert PoissonArrivals(50, seed=1).make() != PoissonArrivals(50, seed=2).make()


def test_load_stretches_arrivals_to_a_share_of_capacity() -> None:
    scenario = Scenario(PoissonArrivals(400, 40.0, 1500.0, 20.0, seed=5).make(), LLAMA_8B, 2)
    capacity_per_s = scenario.capacity_per_s()
    low = scenario.run("least_requests", scenario.time_scale(0.3, capacity_per_s))
    high = scenario.run("least_requests", scenario.time_scale(2.0, capacity_per_s))
    assert low.requests_per_s == pytest.approx(0.3 * capacity_per_s, rel=0.1)
    assert high.requests_per_s < 1.5 * capacity_per_s
    assert low.goodput > high.goodput
    assert 1.0 <= low.imbalance < 2
