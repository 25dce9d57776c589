"""Static against continuous batching: both get the same requests, and the tables have the measured
figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.batching.document import batching_document
from benchmarks.batching.measurement import (
    CONTINUOUS,
    STATIC,
    Batching,
    BatchingOptions,
    Measurement,
    quantile_lengths,
)
from benchmarks.batching.systems import Systems
from benchmarks.batching.transformers import BatchCost, TransformersWorker, WorkerOptions
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.targets.openai import OpenAiTarget
from forebay.engine.launch import Silent
from forebay.settings import Settings, load_settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed

SCRIPTED = Path(__file__).with_name("scripted_worker.py")
SMALL = BatchingOptions(
    limits=(4, 16),
    requests=6,
    latency_requests=3,
    prompt_tokens=8,
    mean_tokens=4,
    batch_sizes=(2, 3),
    attentions=("sdpa",),
    relative_rates=True,
)


def measure(options: BatchingOptions, home: Path) -> Batching:
    @contextmanager
    def start(attention: str) -> Iterator[TransformersWorker]:
        worker = WorkerOptions(
            python=Path(sys.executable),
            model=str(home / "batches"),
            dtype="float32",
            attention=attention,
            script=SCRIPTED,
        )
        with TransformersWorker(worker, Settings(home, Path(sys.executable))) as running:
            yield running

    measurement, costs = Measurement(options, lambda words: None, local=False), list[BatchCost]()
    with ReplicaThread(ReplicaScript(delay=Fixed(0.002), chunks=4)) as replica:
        cells = list(measurement.continuous(OpenAiTarget(replica.url)))
    cells += measurement.static(start, costs)
    return Batching(options, tuple(cells), tuple(costs), measurement.complete)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Batching:
    return measure(SMALL, tmp_path_factory.mktemp("batching"))


def test_every_system_gets_the_same_lengths_and_prompts_of_its_own(found: Batching) -> None:
    for limit in SMALL.limits:
        cells = [found.cell(system, limit=limit) for system in (CONTINUOUS, STATIC)]
        runs = [cell.run for cell in cells if cell is not None]
        assert len(runs) == 2
        lengths = [[record.output_tokens for record in run.records] for run in runs]
        assert lengths[0] == lengths[1]
        assert all(1 <= length <= limit for length in lengths[0] if length)
        assert all(record.asked_prompt_tokens == 8 for run in runs for record in run.records)
        assert all(record.due_s == 0 for run in runs for record in run.records)
        assert runs[0].asked["nonce"] != runs[1].asked["nonce"]


def test_static_batching_runs_with_its_best_settings(found: Batching) -> None:
    assert [(cost.attention, cost.batch_size) for cost in found.costs] == [("sdpa", 2), ("sdpa", 3)]
    cells = [cell for cell in found.cells if cell.system != CONTINUOUS]
    # The scripted worker takes as long for three as for two.
    assert {(cell.batch_size, cell.attention) for cell in cells} == {(3, "sdpa")}
    assert all(cell.batch_size is None for cell in found.cells if cell.system == CONTINUOUS)


def test_rates_are_the_studys_relative_to_the_capacity(found: Batching) -> None:
    capacity = found.cell(CONTINUOUS, limit=16)
    assert capacity is not None
    for rate in (1.0, 4.0):
        for system in (CONTINUOUS, STATIC):
            cell = found.cell(system, rate=rate)
            assert cell is not None
            assert cell.rate_per_s == pytest.approx(capacity.figures.requests_per_s * rate / 8, abs=1e-4)
            assert all(2 <= (record.asked_prompt_tokens or 0) <= 6 for record in cell.run.records)


def test_the_document_has_both_tables(found: Batching) -> None:
    document = batching_document(found, held_equal={"model": "m"}, provenance={"machine": "here"})
    assert document["complete"] is True
    for limit in ("4", "16"):
        row = document["throughput"][limit]
        assert set(row) == {STATIC, CONTINUOUS}
        assert document["ratio"][limit] == pytest.approx(row[CONTINUOUS] / row[STATIC])
        assert document["settings"][limit][STATIC] == {"batch_size": 3, "attention": "sdpa"}
        cell = found.cell(STATIC, limit=int(limit))
        assert cell is not None
        prompts, answers = 6 * 8, sum(record.output_tokens or 0 for record in cell.run.records)
        assert row[STATIC] == pytest.approx((prompts + answers) / cell.run.duration_s)
        assert document["output_throughput"][limit][STATIC] == pytest.approx(answers / cell.run.duration_s)
    for rate in ("1", "4"):
        row = document["latency"][rate]
        assert set(row) == {STATIC, CONTINUOUS}
        for system in row.values():
            assert system["cdf_s"] == sorted(system["cdf_s"])
            assert len(system["cdf_s"]) == 3
            assert system["p50_s"] == pytest.approx(system["cdf_s"][1], abs=1e-3)
            # Of three requests there is no p99.
            assert system["p99_s"] is None


@pytest.mark.long
@pytest.mark.vllm
def test_both_systems_are_measured(tmp_path: Path) -> None:
    options = replace(SMALL, requests=4, latency_requests=2, prompt_tokens=32)
    silent, costs = Silent(), list[BatchCost]()
    systems = Systems(settings=load_settings(), progress=silent, max_model_len=512)
    measurement = Measurement(options, lambda words: None)
    with systems.continuous() as target:
        cells = list(measurement.continuous(target))
    cells += measurement.static(systems.transformers, costs)
    found = Batching(options, tuple(cells), tuple(costs), measurement.complete)
    document = batching_document(found, held_equal=systems.held_equal(), provenance={})
    assert document["complete"] is True
    assert all(not cell.figures.failed for cell in found.cells)
    assert document["ratio"]["16"] > 0
    assert set(document["latency"]["4"]) == {STATIC, CONTINUOUS}
    assert set(systems.provenance((), seed=0)["engine_versions"]) >= {"torch", "transformers"}


def test_busy_machine_makes_a_cell_invalid(found: Batching) -> None:
    cell = found.cells[0]
    assert not [reason for reason in cell.reasons if "other programs" in reason]
    assert not [reason for reason in replace(cell, others_cores=0.0).reasons if "other programs" in reason]
    (reason,) = [one for one in replace(cell, others_cores=999.0).reasons if "other programs" in one]
    assert "999.00 of" in reason


@given(st.integers(1, 300), st.sampled_from([32, 128, 512, 1536]), st.integers(0, 9))
def test_quantiles_represent_the_distribution(count: int, limit: int, seed: int) -> None:
    lengths = quantile_lengths(count, 128.0, limit, seed)
    assert len(lengths) == count
    assert all(1 <= length <= limit for length in lengths)
    assert sorted(lengths) == sorted(quantile_lengths(count, 128.0, limit, seed + 1))
    # Half of them lie below the median, as of the distribution.
    median = -128 * math.log1p(-0.5 * -math.expm1(-limit / 128))
    assert abs(sum(length <= median for length in lengths) - count / 2) <= 1 + count * 0.03
