"""What the commands refuse before measuring for minutes, and what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import application
from typer.testing import CliRunner

from forebay.errors import SettingError


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr("benchmarks.overhead.measure_overhead", measure)
    monkeypatch.setattr("benchmarks.overhead.measure_page", measure)
    monkeypatch.setattr("benchmarks.applications.measure_applications", measure)
    monkeypatch.setattr("benchmarks.recovery.measure_recovery", measure)
    monkeypatch.setattr("benchmarks.peers.parts.measure_peers", measure)
    monkeypatch.setattr("benchmarks.kubernetes.measure.measure_kubernetes", measure)


def figures(added_ms: float) -> dict[str, Any]:
    return {
        "events_per_s": 100.0, "tokens_per_s": 1600.0, "added_ms_p50": added_ms, "added_ms_p99": 2 * added_ms,
        "checkpoint_ms_p99": None, "in_flight_mean": 3.0, "added_ms": [added_ms] * 101,
    }  # fmt: skip


def test_the_figures_are_shown_written_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {
        "engine": "fake",
        "direct": figures(0.5),
        "forebay": figures(4.25),
        "saturated": {"forebay": figures(8.0), "forebay_to_direct": {"events": 0.98}},
        "memory": {"samples": 12},
    }
    monkeypatch.setattr("benchmarks.overhead.measure_overhead", lambda options, note: measured)
    done = CliRunner().invoke(
        application(),
        ["overhead", "--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")],
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "a.json").read_text()) == measured
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("more", [("--engine", "http://h:1"), ("--plot", "a.svg")])
def test_the_page_is_compared_with_the_scripted_engine_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(application(), ["overhead", "--page", *more])
    assert isinstance(found.exception, SettingError)
    assert "--page: expected no --engine and no --plot" in str(found.exception)
