"""Many short requests in one batch, and a single one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.batching.burst import BurstOptions, burst_document, latencies_s, measure_burst
from benchmarks.batching.transformers import BatchCost, fastest
from hypothesis import given
from hypothesis import strategies as st

from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

OPTIONS = BurstOptions(requests=7, repeats=3, output_tokens=2)


def test_all_three_are_measured() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        found = measure_burst(replica.url, None, OPTIONS)
    assert found.complete
    assert len(found.alone.run.records) == 3
    assert found.batch is not None
    assert found.apart is not None
    assert len(found.batch.run.records) == 1
    assert len(found.apart.run.records) == 7
    # All prompts are in the one request.
    (whole,), alone = found.batch.run.records, found.alone.run.records[0]
    assert (whole.prompt_tokens or 0) > 5 * (alone.prompt_tokens or 0)
    document = burst_document(found, provenance={})
    (took,) = latencies_s(found.batch)
    assert document["batch"]["requests_per_s"] == pytest.approx(7 / took)
    assert document["gain"] == pytest.approx(7 * document["alone"]["p50_s"] / took)
    assert document["alone"]["p99_s"] is None
    assert document["apart"]["failed"] == 0


def test_incomplete_batch_is_invalid() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        found = measure_burst(replica.url, None, OPTIONS)
    assert found.batch is not None
    (record,) = found.batch.run.records
    short = replace(found.batch, run=replace(found.batch.run, records=(replace(record, output_tokens=2),)))
    reasons = burst_document(replace(found, batch=short), provenance={})["reasons"]
    assert any("have 2 tokens, and 14 were asked for" in reason for reason in reasons)


def cost(batch_size: int, prefill_s: float, step_s: float) -> BatchCost:
    return BatchCost("sdpa", batch_size, prefill_s, step_s)


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=40),
    st.integers(1, 16),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_batches_never_take_less_than_the_longest_answer_alone(
    lengths: list[int], batch_size: int, prefill_s: float, step_s: float
) -> None:
    batched = cost(batch_size, prefill_s, step_s)
    assert batched.load_s(lengths) >= (max(lengths) - 1) * step_s
    assert batched.load_s([max(lengths)] * len(lengths)) >= batched.load_s(lengths)


def test_a_batch_takes_its_prompts_and_its_longest_answer() -> None:
    two = cost(2, 1.0, 0.1)
    assert two.load_s([3, 11]) == pytest.approx(1.0 + 10 * 0.1)
    # The last batch is half full: half the prompts, and as many steps as its own answer has.
    assert two.load_s([3, 11, 6]) == pytest.approx(2.0 + 0.5 + 5 * 0.1)
    assert two.load_s([]) == 0


def test_equal_answer_lengths_favour_large_batches() -> None:
    small, large = cost(1, 0.1, 0.02), cost(8, 0.8, 0.08)
    assert fastest([small, large], [100] * 8) is large
    assert fastest([small, large], [2] * 7 + [400]) is small
