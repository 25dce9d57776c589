"""The fast replica against the exact stepper, and the rules of its scheduler."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate.engine import EngineModel, StepTime
from forebay.planning.simulate.replica import SimRequest, SimulatedReplica, serve

_spec = importlib.util.spec_from_file_location("stepper", Path(__file__).with_name("stepper.py"))
assert _spec is not None
assert _spec.loader is not None
stepper = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stepper)

TIME = StepTime(0.009, 0.0001, 1e-7, 5e-5, 1e-9, 0.003)


def model(kv_tokens: int = 4096, seqs: int = 8, budget: int = 256) -> EngineModel:
    return EngineModel("test", TIME, kv_tokens, seqs, budget, unit_tokens=16, block_tokens=64)


Row = tuple[float, int, int, tuple[int, ...]]


def sequences(rows: list[Row]) -> list[SimRequest]:
    return [
        SimRequest(i, arrived_s, RoutingRequest(prompt, blocks), output)
        for i, (arrived_s, prompt, output, blocks) in enumerate(rows)
    ]


@st.composite
def workloads(draw: st.DrawFn) -> list[Row]:
    rows = []
    now_s = 0.0
    prefixes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    for i in range(draw(st.integers(1, 30))):
        now_s += draw(st.sampled_from([0.0, 0.0001, 0.01, 0.3, 2.0])) * draw(st.floats(0.5, 1.5))
        prompt = draw(st.integers(1, 900))
        shared = draw(st.sampled_from(prefixes))
        kind = draw(st.integers(0, 2))
        whole = prompt // 64
        blocks = tuple(1000 * kind + at if at < shared * 2 else 10**6 * (i + 1) + at for at in range(whole))
        rows.append((now_s, prompt, draw(st.integers(1, 150)), blocks))
    return rows


@pytest.mark.heavy
@settings(max_examples=6 * settings.default.max_examples)
@given(workloads(), st.sampled_from([1100, 1600, 2600, 50_000]), st.sampled_from([1, 3, 8]))
def test_skipping_steps_equals_single_steps(rows: list[Row], kv_tokens: int, seqs: int) -> None:
    fast = sequences(rows)
    exact = sequences(rows)
    replica = SimulatedReplica(model(kv_tokens, seqs))
    serve(replica, fast)
    stepper.run_exactly(model(kv_tokens, seqs), exact)
    for mine, theirs in zip(fast, exact, strict=True):
        assert mine.first_token_s == pytest.approx(theirs.first_token_s, abs=1e-7), mine.index
        assert mine.finished_s == pytest.approx(theirs.finished_s, abs=1e-7), mine.index
        assert (mine.hit_tokens, mine.preemptions) == (theirs.hit_tokens, theirs.preemptions)
    assert (replica.running, replica.waiting, replica.kv_usage) == (0, 0, 0.0)


def test_memory_shortage_preempts_the_newest_and_loses_nothing() -> None:
    rows: list[Row] = [(0.0, 200, 150, ()), (0.0, 200, 150, ()), (0.1, 200, 150, ())]
    fast, exact = sequences(rows), sequences(rows)
    replica = SimulatedReplica(model(kv_tokens=800))
    finished = serve(replica, fast)
    stepper.run_exactly(model(kv_tokens=800), exact)
    assert replica.preemptions > 0
    assert [one.preemptions for one in fast] == [one.preemptions for one in exact]
    assert fast[0].preemptions == 0
    assert {one.index for one in finished} == {0, 1, 2}
    assert [one.finished_s for one in fast] == pytest.approx([one.finished_s for one in exact])


def test_a_prefix_in_the_cache_is_not_computed_again_until_it_is_evicted() -> None:
    prompt = tuple(range(5))
    rows: list[Row] = [
        (0.0, 330, 2, prompt),
        (5.0, 330, 2, prompt),
        (10.0, 3900, 2, ()),
        (20.0, 330, 2, prompt),
    ]
    requests = sequences(rows)
    serve(SimulatedReplica(model()), requests)
    assert [one.hit_tokens for one in requests] == [0, 320, 0, 192]
