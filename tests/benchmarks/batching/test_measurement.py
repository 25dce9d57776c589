"""Static against continuous batching: both get the same requests, and the tables have the measured
figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.batching.document import batching_document, batching_picture, ratio
from benchmarks.batching.measurement import (
    CONTINUOUS,
    LONGEST_OF_ALL,
    STATIC,
    Batching,
    BatchingOptions,
    Measurement,
    fresh_prompts,
    quantile_lengths,
)
from benchmarks.batching.systems import Systems
from benchmarks.batching.transformers import BatchCost, TransformersWorker, WorkerOptions
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batching import measurement as batching
from forebay.bench import client
from forebay.bench.load.lengths import CappedExponential, Exactly
from forebay.bench.load.plan import Load, make_load
from forebay.bench.load.schedules import Bursts
from forebay.bench.load.workloads import RandomTokens
from forebay.bench.processor import ProcessorUse
from forebay.bench.records import LoadRun
from forebay.bench.targets.base import Target
from forebay.bench.targets.openai import OpenAiTarget
from forebay.engine.launch import Silent
from forebay.errors import SettingError
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
    longest_of_all=True,
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
        cells = [found.cell(system, limit=limit) for system in (CONTINUOUS, STATIC, LONGEST_OF_ALL)]
        runs = [cell.run for cell in cells if cell is not None]
        assert len(runs) == 3
        lengths = [[record.output_tokens for record in run.records] for run in runs]
        assert lengths[0] == lengths[1] == lengths[2]
        assert all(1 <= length <= limit for length in lengths[0] if length)
        assert all(record.asked_prompt_tokens == 8 for run in runs for record in run.records)
        assert all(record.due_s == 0 for run in runs for record in run.records)
        # Static batching in both forms is measured on one load: it has no cache that the first could warm.
        assert runs[0].asked["nonce"] != runs[1].asked["nonce"]


def test_static_batching_runs_with_its_best_settings(found: Batching) -> None:
    assert [(cost.attention, cost.batch_size) for cost in found.costs] == [("sdpa", 2), ("sdpa", 3)]
    cells = [cell for cell in found.cells if cell.system != CONTINUOUS]
    # The scripted worker takes as long for three as for two.
    assert {(cell.batch_size, cell.attention) for cell in cells} == {(3, "sdpa")}
    assert all(cell.batch_size is None for cell in found.cells if cell.system == CONTINUOUS)


def test_rates_are_those_of_the_study_relative_to_what_the_engine_can_do(found: Batching) -> None:
    capacity = found.cell(CONTINUOUS, limit=16)
    assert capacity is not None
    for rate in (1.0, 4.0):
        for system in (CONTINUOUS, STATIC):
            cell = found.cell(system, rate=rate)
            assert cell is not None
            assert cell.rate_per_s == pytest.approx(capacity.figures.requests_per_s * rate / 8, abs=1e-4)
            assert all(2 <= (record.asked_prompt_tokens or 0) <= 6 for record in cell.run.records)
        assert found.cell(LONGEST_OF_ALL, rate=rate) is None


def test_the_document_has_both_tables(found: Batching) -> None:
    document = batching_document(found, held_equal={"model": "m"}, provenance={"machine": "here"})
    assert document["complete"] is True
    for limit in ("4", "16"):
        row = document["throughput"][limit]
        assert set(row) == {STATIC, LONGEST_OF_ALL, CONTINUOUS}
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


def test_what_was_not_measured_is_left_out_and_never_guessed(found: Batching) -> None:
    only = replace(found, cells=tuple(cell for cell in found.cells if cell.system == STATIC))
    document = batching_document(only, held_equal={}, provenance={})
    assert document["ratio"] == {"4": None, "16": None}
    assert set(document["throughput"]["4"]) == {STATIC}
    assert ratio(only, 4) is None


def test_a_system_that_fails_makes_the_document_invalid(tmp_path: Path) -> None:
    measurement = Measurement(replace(SMALL, latency_requests=0), lambda words: None)
    with ReplicaThread(ReplicaScript(max_model_len=20)) as replica:
        cells = tuple(measurement.continuous(OpenAiTarget(replica.url)))
    failed = Batching(measurement.options, cells)
    document = batching_document(failed, held_equal={}, provenance={})
    assert document["valid"] is False
    assert "continuous, limit 16" in document["reasons"]


def test_a_machine_that_others_use_makes_a_cell_invalid(found: Batching) -> None:
    cell = found.cells[0]
    assert not [reason for reason in cell.reasons if "other programs" in reason]
    assert not [reason for reason in replace(cell, others_cores=0.0).reasons if "other programs" in reason]
    (reason,) = [one for one in replace(cell, others_cores=999.0).reasons if "other programs" in one]
    assert "999.00 of" in reason


def test_the_picture_is_drawn(found: Batching) -> None:
    document = batching_document(found, held_equal={}, provenance={})
    picture = batching_picture(document, "a title")
    assert len(picture.figures) == 3
    assert "continuous batching (vLLM)" in picture.svg()


def test_options_that_measure_nothing_are_refused() -> None:
    with pytest.raises(SettingError, match="at least one limit"):
        BatchingOptions(limits=())
    with pytest.raises(SettingError, match="expected requests"):
        BatchingOptions(requests=0)


@pytest.mark.long
@pytest.mark.vllm
def test_both_systems_are_measured(tmp_path: Path) -> None:
    options = replace(SMALL, requests=4, latency_requests=2, prompt_tokens=32, longest_of_all=False)
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
    assert set(systems.provenance(seed=0)["engine_versions"]) >= {"torch", "transformers"}


def disturbances(monkeypatch: pytest.MonkeyPatch, *cores: float) -> None:
    """Cores that other programs keep busy during the first run, the second, and so on."""
    looks = iter([look for busy in cores for look in (ProcessorUse(0, 0, 0), ProcessorUse(1, busy, 0))])
    monkeypatch.setattr(batching, "processor_use", lambda: next(looks))


@pytest.mark.parametrize(
    ("cores", "taken"),
    [((0.0,), 0.0), ((9.0, 0.0), 0.0), ((9.0, 7.0, 8.0), 7.0)],
)
def test_a_load_that_others_disturb_is_measured_again(
    cores: tuple[float, ...], taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbances(monkeypatch, *cores)
    told: list[str] = []
    measurement = Measurement(replace(SMALL, limits=(4,), latency_requests=0), told.append)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.002))) as replica:
        (cell,) = measurement.continuous(OpenAiTarget(replica.url))
    assert cell.others_cores == taken
    assert len([words for words in told if "other programs" in words]) == sum(busy > 1 for busy in cores)
    assert len(cell.run.records) == SMALL.requests


def test_a_load_that_is_sent_again_has_the_same_lengths_and_other_prompts() -> None:
    workload = RandomTokens(Exactly(8), CappedExponential(4, 16))
    load = make_load(Bursts(), workload, 5, seed=3)
    again = fresh_prompts(load)
    assert [one.output_tokens for one in again.requests] == [one.output_tokens for one in load.requests]
    assert all(len(one.prompt) == 8 for one in again.requests)
    assert all(list(a.prompt) != list(b.prompt) for a, b in zip(load.requests, again.requests, strict=True))
    assert again.asked["nonce"] != load.asked["nonce"]


@given(st.integers(1, 300), st.sampled_from([32, 128, 512, 1536]), st.integers(0, 9))
def test_quantiles_stand_for_the_whole_distribution(count: int, limit: int, seed: int) -> None:
    lengths = quantile_lengths(count, 128.0, limit, seed)
    assert len(lengths) == count
    assert all(1 <= length <= limit for length in lengths)
    assert sorted(lengths) == sorted(quantile_lengths(count, 128.0, limit, seed + 1))
    # Half of them lie below the median, as of the distribution.
    median = -128 * math.log1p(-0.5 * -math.expm1(-limit / 128))
    assert abs(sum(length <= median for length in lengths) - count / 2) <= 1 + count * 0.03


def test_limits_differ_also_for_few_requests() -> None:
    assert max(quantile_lengths(20, 128.0, 512, 0)) < max(quantile_lengths(20, 128.0, 1536, 0))
    mean = sum(quantile_lengths(64, 128.0, 1536, 0)) / 64
    assert mean == pytest.approx(128, rel=0.02)


def test_both_systems_get_the_same_quantiles(tmp_path: Path) -> None:
    options = replace(SMALL, even_lengths=True, latency_requests=2, longest_of_all=False)
    found = measure(options, tmp_path)
    wanted = quantile_lengths(6, 4.0, 16, 0)
    for system in (CONTINUOUS, STATIC):
        cell = found.cell(system, limit=16)
        assert cell is not None
        assert [record.output_tokens for record in cell.run.records] == wanted


def test_an_interrupted_warm_up_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(target: Target, load: Load, **more: Any) -> LoadRun:
        return replace(client.measure(target, load, **more), complete=False)

    monkeypatch.setattr(batching, "measure", interrupted)
    measurement = Measurement(SMALL, local=False)
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        assert list(measurement.continuous(OpenAiTarget(replica.url))) == []
    assert not measurement.complete
