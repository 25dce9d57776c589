"""How many replicas a workload needs."""

from __future__ import annotations

import dataclasses

import pytest
from tests.planning.test_model_config import LLAMA

from forebay.errors import SettingError
from forebay.planning.memory import ACCELERATORS, find_accelerator, plan_memory
from forebay.planning.model_config import shape_of
from forebay.planning.simulate import Scenario, Slo
from forebay.planning.simulate.engine import LLAMA_8B, EngineModel
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest
from forebay.planning.workload import engine_of, plan_workload

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


def test_the_number_of_replicas_is_the_least_that_does() -> None:
    trace = load(30.0)
    found = plan_workload(trace, engine(), SLO)
    assert found.goodput >= 0.99
    assert found.replicas > 1
    one_fewer = Scenario(trace, engine(), found.replicas - 1, SLO).run("expected_ttft")
    assert one_fewer.goodput < 0.99


def test_prompts_ask_for_prefill_and_answers_for_decode() -> None:
    code = plan_workload(load(5.0, 4000, 30), engine(), SLO)
    talk = plan_workload(load(5.0, 200, 600), engine(), SLO)
    assert code.prefill > 3 * code.decode
    assert talk.decode > 3 * talk.prefill
    assert code.prefill + code.decode == pytest.approx(code.replicas)


def test_what_limits_a_replica() -> None:
    assert plan_workload(load(5.0, 4000, 30), engine(), SLO).limit == "arithmetic"
    tight = dataclasses.replace(engine(), kv_tokens=8000)
    assert plan_workload(load(1.0, 200, 600), tight, SLO).limit == "KV cache"
    few = dataclasses.replace(engine(), max_num_seqs=4)
    assert plan_workload(load(1.0, 200, 600), few, SLO).limit == "max_num_seqs"


def test_an_slo_out_of_reach_is_reported() -> None:
    with pytest.raises(SettingError, match="out of reach"):
        plan_workload(load(5.0), engine(), Slo(2.0, 1.0, 1e-4))


def test_a_workload_needs_a_speed() -> None:
    card = find_accelerator("40GB")
    with pytest.raises(SettingError, match="--tflops"):
        engine_of(SHAPE, card, plan_memory(SHAPE, card, 1000))
