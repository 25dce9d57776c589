"""Two pools in simulated time: times, capacity, the search for a rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate import fleet_of
from forebay.planning.simulate.disaggregation import LeastFull, Split, Transfer, TwoPools
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest


def test_one_request_takes_prefill_transfer_and_its_steps() -> None:
    transfer, time = Transfer(bytes_per_token=1e5, bandwidth=1e9, latency_s=0.01), LLAMA_8B.step_time
    pools = TwoPools([TraceRequest(0.0, 1000, 5)], LLAMA_8B, transfer=transfer)
    (answer,) = pools.serve(Split(1, 1))
    assert answer.arrived_s == pytest.approx(LLAMA_8B.alone_s(1000) + 0.01 + 0.1)
    assert answer.first_token_s == pytest.approx(answer.arrived_s + time.step_s)
    took_s = time.decode_run_s(4, 1, 1001)
    assert answer.finished_s - answer.first_token_s == pytest.approx(took_s, rel=1e-3)


@given(st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 50), st.integers(0, 5))
def test_every_request_is_answered_once_and_in_order(
    prefill: int, decode: int, rate: float, seed: int
) -> None:
    trace = PoissonArrivals(60, rate, 400, 40, seed=seed).make()
    transfer = Transfer()
    answers = TwoPools(trace, LLAMA_8B, transfer=transfer).serve(Split(prefill, decode))
    assert sorted(answer.index for answer in answers) == list(range(60))
    for answer in answers:
        one = trace[answer.index]
        least_s = LLAMA_8B.alone_s(one.prompt_tokens) + transfer.seconds(one.prompt_tokens)
        assert answer.arrived_s >= one.arrived_s + least_s - 1e-9
        assert answer.arrived_s < answer.first_token_s <= answer.finished_s
        assert answer.output_tokens == one.output_tokens
        assert 0 <= answer.replica < decode


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=40), st.integers(1, 5))
def test_prefilled_request_uses_the_replica_with_most_room(prompts: list[int], replicas: int) -> None:
    fleet, policy = fleet_of([LLAMA_8B] * replicas), LeastFull()
    for prompt in prompts:
        demand = RoutingRequest(prompt)
        chosen = policy.choose(demand, fleet.nothing, fleet, 0.0)
        full = [
            max(fleet.requests[at] / LLAMA_8B.max_num_seqs, fleet.reserved[at] / LLAMA_8B.kv_tokens)
            for at in range(replicas)
        ]
        assert full[chosen] == min(full)
        fleet.take(chosen, demand, fleet.nothing, 0.0)


def test_an_unavailable_replica_gets_nothing() -> None:
    fleet = fleet_of([LLAMA_8B] * 2)
    fleet.set_available(0, False)
    assert LeastFull().choose(RoutingRequest(10), fleet.nothing, fleet, 0.0) == 1


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(SettingError, match="one replica in each pool"):
        Split(0, 3)
    with pytest.raises(SettingError, match="bandwidth above 0"):
        Transfer(bandwidth=0.0)
    with pytest.raises(SettingError, match="does not fit"):
        TwoPools([TraceRequest(0.0, 600_000, 1)], LLAMA_8B).serve(Split(1, 1))
