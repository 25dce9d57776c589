"""`python -m benchmarks client`: figures, and criteria for VALID."""

from __future__ import annotations

import math
import os

import orjson
import pytest
from benchmarks.__main__ import application
from benchmarks.client import CLIENTS, ClientOptions, HttpCallsOptions, measure_client, measure_http_calls
from typer.testing import CliRunner

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@two_cores
def test_a_run_has_its_figures_and_frees_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine is late, and falls behind.
    monkeypatch.setattr("forebay.bench.verdict.MAX_LATE_S", 60.0)
    monkeypatch.setattr("forebay.bench.verdict.MAX_BEHIND", 60.0)
    cores = os.sched_getaffinity(0)
    options = ClientOptions(rates=(50.0,), seconds=2.0, tokens=4)
    found = orjson.loads(orjson.dumps(measure_client(options)))
    (run,) = found["runs"]
    assert (run["requests"], run["answered"]) == (100, 100)
    assert run["verdict"] == "VALID", run["reasons"]
    for name in ("schedule_delay_ms", "added_ttft_ms", "added_e2el_ms"):
        # Nothing arrives earlier than scripted; the event loop's clock has a resolution of its own.
        assert -1 < run[name]["p50"] <= run[name]["p99"] <= run[name]["max"]
    assert run["client_cores"] > 0
    assert os.sched_getaffinity(0) == cores


@two_cores
def test_late_client_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.bench.verdict.MAX_LATE_S", 0.0)
    monkeypatch.setattr("forebay.bench.verdict.MAX_LATE_OF_TTFT", 0.0)
    words = ["client", "--rate", "50", "--seconds", "1", "--tokens", "2"]
    result = CliRunner().invoke(application(), words)
    assert result.exit_code == 1
    assert "INVALID" in result.output
    assert "could not keep its schedule" in result.output


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_every_client_gets_its_answers() -> None:
    found = measure_http_calls(HttpCallsOptions(rounds=1, seconds=0.2, loads=(50.0, math.inf)))
    for load in found["loads"]:
        assert load["median"].keys() == set(CLIENTS)
        assert all(ms > 0 for ms in load["median"].values())
