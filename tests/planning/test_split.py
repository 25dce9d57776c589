"""How many replicas prefill and how many decode, and whether two pools pay."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.planning.simulate import Slo
from forebay.planning.simulate.disaggregation import Transfer
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest
from forebay.planning.workload import PhaseWork, phase_work, plan_split, split_of

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


def test_one_replica_cannot_be_split() -> None:
    with pytest.raises(SettingError, match="at least 2 replicas, found 1"):
        split_of(1, PhaseWork(1.0, 1.0))


def test_a_tight_pace_makes_batches_small_and_decode_dear() -> None:
    lengths = [TraceRequest(0.0, 500, 300)]
    loose, tight = (phase_work(lengths, LLAMA_8B, tpot_s) for tpot_s in (0.2, 0.0125))
    assert tight.decode_s > 2 * loose.decode_s
    assert tight.prefill_s == loose.prefill_s == LLAMA_8B.alone_s(500)


def test_the_batch_is_bound_by_the_kv_cache() -> None:
    lengths = [TraceRequest(0.0, 500, 300)]
    small = dataclasses.replace(LLAMA_8B, kv_tokens=2000)
    assert phase_work(lengths, small, 0.2).decode_s > 5 * phase_work(lengths, LLAMA_8B, 0.2).decode_s


def test_a_tight_pace_next_to_long_prompts_pays() -> None:
    """A mixed replica's chunk of 2048 tokens takes 0.1 s, in which every other answer waits."""
    slo, trace = Slo(1.0, 1.0, 0.03), PoissonArrivals(400, 6.0, 3000, 150).make()
    found = plan_split(trace, LLAMA_8B, slo, Transfer(), mixed=8, goal=0.9)
    assert found.pays
    assert found.replicas is not None
    assert found.replicas < 8
    assert found.prefill + found.decode == 8
    assert found.goodput >= 0.9


def test_a_slow_network_does_not_pay() -> None:
    slo, trace = Slo(1.0, 1.0, 0.03), PoissonArrivals(100, 2.0, 3000, 150).make()
    found = plan_split(trace, LLAMA_8B, slo, Transfer(bandwidth=1e6), mixed=4, goal=0.9)
    assert (found.replicas, found.pays) == (None, False)


def test_one_mixed_replica_is_never_beaten() -> None:
    found = plan_split(
        PoissonArrivals(50, 0.2, 300, 50).make(), LLAMA_8B, Slo(), Transfer(), mixed=1, goal=0.9
    )
    assert (found.prefill, found.decode, found.replicas, found.pays) == (0, 0, 2, False)
