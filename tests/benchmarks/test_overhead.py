"""The comparison of systems, without the systems."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.engine_settings import (
    IN_FLIGHT,
    SETTINGS,
    launch_of,
    measure_settings,
    written_per_second,
)
from benchmarks.overhead import (
    OverheadOptions,
    measure_overhead,
    memory_growth,
    open_page,
    page_address,
    page_report,
    run_worker,
)
from benchmarks.pipeline_start import PipelineStartOptions, measure_pipeline_start
from benchmarks.workload import Workload

from benchmarks import engine_settings
from benchmarks import overhead as module
from forebay.engine.launch.progress import Silent
from forebay.engine.launch.spec import ReplicaSpec, vllm_launch
from forebay.errors import LaunchError
from forebay.pipeline.live.server import PageServer
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until


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


def test_a_setting_changes_what_it_says_and_nothing_else() -> None:
    base = vllm_launch(Path("python"), ReplicaSpec("m", "m"), port=1, cores=(0, 1), threads=2)
    assert launch_of(SETTINGS["local"], base) == base
    vllm = launch_of(SETTINGS["vllm"], base)
    assert vllm.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0,1"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in vllm.environment
    assert base.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert launch_of(SETTINGS["passive"], base).environment["OMP_WAIT_POLICY"] == "passive"
    assert launch_of(SETTINGS["spin-200"], base).environment["KMP_BLOCKTIME"] == "200"
    assert launch_of(SETTINGS["nice-10"], base).command == ("nice", "-n", "10", *base.command)


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


def test_the_page_is_compared_with_none_round_by_round() -> None:
    def turns(*rates: float) -> list[dict[str, float]]:
        return [{"answers_per_s": rate, "ms_per_answer": 1.0, "command_cores": 0.1} for rate in rates]

    report = page_report({"without": turns(100, 200, 300), "page": turns(99, 210, 270)})
    assert report["ratios"] == [0.99, 1.05, 0.9]
    assert report["ratio"] == 0.99
    assert report["page"]["answers_per_s"] == 210


def test_the_address_of_the_page_is_found_in_what_the_run_says() -> None:
    said = "warning: x\nwatch this run at http://127.0.0.1:5/secret/\n    1 s running"
    assert page_address(said) == "http://127.0.0.1:5/secret/"
    with pytest.raises(LaunchError, match="the run has no page: nothing"):
        page_address("nothing")


def test_an_open_page_is_read_part_by_part() -> None:
    class Parts:
        def __init__(self) -> None:
            self.version = 0
            self.asked: list[str] = []

        def page(self) -> str:
            return "page"

        def versions(self) -> dict[str, int]:
            return {"numbers": self.version, "charts": 1}

        def part(self, name: str, search: str) -> str:
            self.asked.append(name)
            return name

    parts = Parts()
    with closing(PageServer(parts)) as server:
        server.start()
        with open_page(server.url):
            wait_until(lambda: len(parts.asked) == 2)
            parts.version = 1
            wait_until(lambda: len(parts.asked) == 3)
        server.close()
    assert sorted(parts.asked) == ["charts", "numbers", "numbers"]
