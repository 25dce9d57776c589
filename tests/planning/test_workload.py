"""How many replicas a workload needs."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.test_model_config import LLAMA

from forebay.errors import SettingError
from forebay.planning.memory import ACCELERATORS, find_accelerator, plan_memory
from forebay.planning.model_config import shape_of
from forebay.planning.simulate import Scenario, Slo
from forebay.planning.simulate.disaggregation import Transfer
from forebay.planning.simulate.engine import LLAMA_8B, EngineModel
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest
from forebay.planning.workload import PhaseWork, engine_of, phase_work, plan_split, plan_workload, split_of

SECONDS = st.floats(1e-6, 1e4)


def busiest(work: PhaseWork, prefill: int, decode: int) -> float:
    return max(work.prefill_s / prefill, work.decode_s / decode)


@given(st.integers(2, 60), SECONDS, SECONDS)
def test_no_other_split_has_a_less_busy_pool(replicas: int, prefill_s: float, decode_s: float) -> None:
    work = PhaseWork(prefill_s, decode_s)
    found = split_of(replicas, work)
    assert found.prefill + found.decode == replicas
    every = [busiest(work, prefill, replicas - prefill) for prefill in range(1, replicas)]
    assert busiest(work, found.prefill, found.decode) == min(every)


@given(st.integers(2, 60), SECONDS, SECONDS, st.floats(1, 100))
def test_more_prefill_work_never_takes_replicas_from_prefill(
    replicas: int, prefill_s: float, decode_s: float, more: float
) -> None:
    before = split_of(replicas, PhaseWork(prefill_s, decode_s))
    assert split_of(replicas, PhaseWork(prefill_s * more, decode_s)).prefill >= before.prefill


def test_tight_token_pace_makes_batches_small_and_decode_expensive() -> None:
    lengths = [TraceRequest(0.0, 500, 300)]
    loose, tight = (phase_work(lengths, LLAMA_8B, tpot_s) for tpot_s in (0.2, 0.0125))
    assert tight.decode_s > 2 * loose.decode_s
    assert tight.prefill_s == loose.prefill_s == LLAMA_8B.alone_s(500)


def test_the_batch_is_bound_by_the_kv_cache() -> None:
    lengths = [TraceRequest(0.0, 500, 300)]
    small = dataclasses.replace(LLAMA_8B, kv_tokens=2000)
    assert phase_work(lengths, small, 0.2).decode_s > 5 * phase_work(lengths, LLAMA_8B, 0.2).decode_s


@pytest.mark.heavy
def test_splitting_pays_for_a_tight_pace_with_long_prompts() -> None:
    """A mixed replica's chunk of 2048 tokens takes 0.1 s, in which every other answer waits."""
    slo, trace = Slo(1.0, 1.0, 0.03), PoissonArrivals(400, 6.0, 3000, 150).make()
    found = plan_split(trace, LLAMA_8B, slo, Transfer(), mixed=8, goal=0.9)
    assert found.pays
    assert found.replicas is not None
    assert found.replicas < 8
    assert found.prefill + found.decode == 8
    assert found.goodput >= 0.9


def test_splitting_does_not_pay_on_a_slow_network() -> None:
    slo, trace = Slo(1.0, 1.0, 0.03), PoissonArrivals(100, 2.0, 3000, 150).make()
    found = plan_split(trace, LLAMA_8B, slo, Transfer(bandwidth=1e6), mixed=4, goal=0.9)
    assert (found.replicas, found.pays) == (None, False)


SHAPE = shape_of(LLAMA, "llama")
SLO = Slo(2.0, 1.0, 0.2)


def engine(name: str = "rtx-pro-6000", context: int = 1200) -> EngineModel:
    card = ACCELERATORS[name]
    return engine_of(SHAPE, card, plan_memory(SHAPE, card, context))


def load(rate: float, prompt: float = 1000, output: float = 200) -> list[TraceRequest]:
    return PoissonArrivals(600, rate, prompt, output).make()


@pytest.mark.parametrize(("prompt", "output"), [(1000, 200), (4000, 30), (200, 600)])
def test_the_roofline_is_near_the_measured_engine(prompt: float, output: float) -> None:
    """The planned engine against one that was fitted to a real vLLM on the same card."""
    trace = load(1.0, prompt, output)
    measured = Scenario(trace, LLAMA_8B, 1).capacity_per_s()
    assert Scenario(trace, engine(), 1).capacity_per_s() == pytest.approx(measured, rel=0.2)


@pytest.mark.heavy
def test_number_of_replicas_is_minimal() -> None:
    trace = load(30.0)
    found = plan_workload(trace, engine(), SLO)
    assert found.goodput >= 0.99
    assert found.replicas > 1
    one_fewer = Scenario(trace, engine(), found.replicas - 1, SLO).run("expected_ttft")
    assert one_fewer.goodput < 0.99


@pytest.mark.heavy
def test_prompts_need_prefill_and_answers_need_decode() -> None:
    code = plan_workload(load(5.0, 4000, 30), engine(), SLO)
    talk = plan_workload(load(5.0, 200, 600), engine(), SLO)
    assert code.prefill > 3 * code.decode
    assert talk.decode > 3 * talk.prefill
    assert code.prefill + code.decode == pytest.approx(code.replicas)


@pytest.mark.heavy
def test_bottleneck_of_a_replica() -> None:
    assert plan_workload(load(5.0, 4000, 30), engine(), SLO).limit == "arithmetic"
    tight = dataclasses.replace(engine(), kv_tokens=8000)
    assert plan_workload(load(1.0, 200, 600), tight, SLO).limit == "KV cache"
    few = dataclasses.replace(engine(), max_num_seqs=4)
    assert plan_workload(load(1.0, 200, 600), few, SLO).limit == "max_num_seqs"


def test_workload_needs_a_rate() -> None:
    card = find_accelerator("40GB")
    with pytest.raises(SettingError, match="--tflops"):
        engine_of(SHAPE, card, plan_memory(SHAPE, card, 1000))


def test_one_replica_cannot_be_split() -> None:
    with pytest.raises(SettingError, match="at least 2 replicas, found 1"):
        split_of(1, PhaseWork(1.0, 1.0))


def test_one_mixed_replica_is_never_beaten() -> None:
    found = plan_split(
        PoissonArrivals(50, 0.2, 300, 50).make(), LLAMA_8B, Slo(), Transfer(), mixed=1, goal=0.9
    )
    assert (found.prefill, found.decode, found.replicas, found.pays) == (0, 0, 2, False)


@pytest.mark.heavy
def test_an_slo_out_of_reach_is_reported() -> None:
    with pytest.raises(SettingError, match="out of reach"):
        plan_workload(load(5.0), engine(), Slo(2.0, 1.0, 1e-4))
