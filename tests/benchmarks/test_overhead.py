"""The comparison of systems, without the systems."""

from __future__ import annotations

import json
import subprocess
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.__main__ import application
from benchmarks.overhead import OverheadOptions, measure_overhead, run_worker
from benchmarks.workload import Workload
from rich.console import Console
from typer.testing import CliRunner, Result

from benchmarks import overhead as module
from forebay.errors import SettingError


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
    report = measure_overhead(OverheadOptions("http://e", False, 50, 4), lambda _: None, lambda _: None)
    assert [system for system, _ in runs] == ["direct", "direct", "forebay", "async_function"]
    assert [load.events for _, load in runs] == [8, 50, 50, 50]
    assert {load.model for _, load in runs} == {"a"}
    assert report["throughput"] == {
        "forebay_to_direct": {"events": 0.97, "tokens": 0.0},
        "async_function_to_direct": {"events": 0.2, "tokens": 0.0},
    }
    assert json.dumps(report)


def command(*words: str) -> Result:
    return CliRunner().invoke(application(), ["overhead", *words])


def test_figures_stay_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, terminal = engine(monkeypatch, "a"), StringIO()
    console = Console(file=terminal, force_terminal=True, width=80)
    monkeypatch.setattr("benchmarks.cli.overhead.errors_console", lambda: console)
    assert command("--engine", "http://e", "--events", "3", "--quick").exit_code == 0
    assert [load.events for _, load in runs] == [64, 1, 1, 1]
    for figures in ("direct: 100.0", "forebay: 97.0", "async_function: 20.0"):
        assert f"{figures} events/s, 0 tokens/s\n" in terminal.getvalue()


@pytest.mark.parametrize("option", ["--events", "--in-flight"])
@pytest.mark.parametrize("more", [[], ["--page"], ["--traces", "--engine", "http://e"]], ids=str)
def test_sizes_that_would_be_ignored_are_refused(option: str, more: list[str]) -> None:
    error = command(option, "7", *more).exception
    assert isinstance(error, SettingError)
    assert str(error).startswith(f"{option}: expected --engine URL and no --page or --traces with it")


@pytest.mark.parametrize("more", [["--page"], ["--engine", "http://e"], ["--plot", "x.svg"]], ids=str)
def test_traces_are_compared_alone(more: list[str]) -> None:
    error = command("--traces", *more).exception
    assert isinstance(error, SettingError)
    assert str(error).startswith("--traces: expected no ")


LOAD = Workload(events=3, rate_per_s=None, capacity=2, url="http://engine")


def worker(monkeypatch: pytest.MonkeyPatch, *, stdout: str = "", stderr: str = "", status: int = 0) -> None:
    done = SimpleNamespace(returncode=status, stdout=stdout, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **more: done)


def test_a_worker_reports_in_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, stdout='a log line\n{"answered": 3}\n')
    assert run_worker("forebay", LOAD) == {"answered": 3}
