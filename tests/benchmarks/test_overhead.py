"""The comparison of systems, without the systems."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.engine_settings import (
    IN_FLIGHT,
    measure_settings,
    written_per_second,
)
from benchmarks.overhead import OverheadOptions, measure_overhead
from benchmarks.pipeline_start import PipelineStartOptions, measure_pipeline_start
from benchmarks.workload import Workload

from benchmarks import engine_settings
from benchmarks import overhead as module
from forebay.engine.launch.progress import Silent
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed


def engine(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[tuple[str, Workload]]:
    runs: list[tuple[str, Workload]] = []

    async def list_models(url: str) -> Any:
        return tuple(SimpleNamespace(name=name) for name in names)

    def run(system: str, load: Workload) -> dict[str, Any]:
        runs.append((system, load))
        share = {"direct": 100.0, "forebay": 97.0, "async_function": 20.0}[system]
        return {"events_per_s": share, "tokens_per_s": 0.0}

    monkeypatch.setattr(module, "list_models", list_models)
    monkeypatch.setattr(module, "run_worker", run)
    return runs


def test_a_real_engine_is_warmed_up_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = engine(monkeypatch, "a", "b")
    report = measure_overhead(OverheadOptions(engine="http://e", events=50, capacity=4))
    assert [system for system, _ in runs] == ["direct", "direct", "forebay", "async_function"]
    assert [load.events for _, load in runs] == [8, 50, 50, 50]
    assert {load.model for _, load in runs} == {"a"}
    assert report["throughput"] == {
        "forebay_to_direct": {"events": 0.97, "tokens": 0.0},
        "async_function_to_direct": {"events": 0.2, "tokens": 0.0},
    }
    assert json.dumps(report)


@pytest.mark.flink
def test_both_ways_in_one_run(tmp_path: Path) -> None:
    options = PipelineStartOptions(events=12, capacity=4, first_token_s=0.05, decode_s=0.3, chunks=2)
    found = measure_pipeline_start(options, tmp_path, load_settings())
    assert (found["events"], found["ratio"] > 0.0) == (12, True)


def test_what_was_begun_is_counted_whole_and_what_is_not_answered_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.05))) as replica:
        assert written_per_second(replica.url, "fake", 0.01) > IN_FLIGHT
    monkeypatch.setattr(engine_settings, "MAX_S", 0.2)
    with ReplicaThread(ReplicaScript(delay=Fixed(60.0))) as replica:
        assert written_per_second(replica.url, "fake", 0.1) == 0


@pytest.mark.long
@pytest.mark.vllm
def test_the_local_engine_is_measured() -> None:
    (found,) = measure_settings(["local"], load_settings(), seconds=1.0, progress=Silent())
    assert found.name == "local"
    assert min(found.idle_tokens_per_s, found.busy_tokens_per_s) > 0
