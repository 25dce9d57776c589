"""What the commands refuse before measuring for minutes, and what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import application
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr("benchmarks.overhead.measure_overhead", measure)
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


def test_applications_are_shown_with_what_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"nmi": 0.93, "ari": 0.85, "clusters": 3, "gold": 2, "texts_per_s": 5000.0}
    topics = {**scores, "texts_per_s_embedded": 400.0, "baselines": {"published": {"nmi": 0.84}}}
    hits = {"precision": 0.9, "recall": 0.8, "delay_s_p50": 12.3}
    trends = {**hits, "events_per_s": 2e4, "state_mib": 12.0, "baselines": {"offline": hits}}
    report = {"topics": {"f.jsonl": topics}, "trends": trends, "skipped": {"g.jsonl": "not there"}}
    asked = []

    def measure(options: Any, *arguments: Any) -> Any:
        asked.append((tuple(options.apps), options.seed, [file.name for file in options.files]))
        return report

    monkeypatch.setattr("benchmarks.applications.measure_applications", measure)
    out = tmp_path / "out.json"
    shown = CliRunner().invoke(application(), ["applications", "--json", str(out), "--seed", "4"])
    assert shown.exit_code == 0
    assert json.loads(out.read_text()) == report
    for text in (
        "f.jsonl",
        "0.930",
        "published",
        "5000",
        "400",
        "0.90",
        "delay p50, s",
        "state, MiB",
        "g.jsonl: not there",
    ):
        assert text in shown.stdout
    CliRunner().invoke(application(), ["applications", "--file", "mine.jsonl"])
    assert asked == [(("topics", "trends", "summary", "sessions"), 4, []), (("topics",), 1, ["mine.jsonl"])]
