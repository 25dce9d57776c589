"""The comparison of systems, without the systems."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.overhead import OverheadOptions, measure_overhead, memory_growth, run_worker
from benchmarks.workload import Workload

from benchmarks import overhead as module


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


LOAD = Workload(events=3, rate_per_s=None, capacity=2, url="http://engine")


def worker(monkeypatch: pytest.MonkeyPatch, *, stdout: str = "", stderr: str = "", status: int = 0) -> None:
    done = SimpleNamespace(returncode=status, stdout=stdout, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **more: done)


def test_a_worker_reports_in_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, stdout='a log line\n{"answered": 3}\n')
    assert run_worker("forebay", LOAD) == {"answered": 3}


def test_growth_is_counted_from_the_warm_up() -> None:
    samples = [
        {"results": 1000.0 * i, "jvm_mb": 900.0 if i < 20 else 500.0 + i, "python_mb": 0.0} for i in range(41)
    ]
    report = memory_growth(samples)
    assert report["samples"] == 21
    assert report["jvm_mb"] == {"before": 522.0, "after": 538.0, "growth": round(538 / 522 - 1, 4)}
    assert report["python_mb"]["growth"] == 0.0
    assert memory_growth(samples[:25]) == {"samples": 5}
