"""The measurement of a gateway under attack, in small, and its sums."""

from __future__ import annotations

import pytest
from benchmarks.gateway import GatewayOptions
from benchmarks.gateway_client import Answer
from benchmarks.hostile import measure_hostile, report

from forebay.errors import LaunchError


def test_both_turns_in_one_run() -> None:
    options = GatewayOptions(rate_per_s=20, rounds=1, seconds=1, first_token_s=0.01, token_s=0.0)
    found = measure_hostile(options)
    assert found["requests"] == 20
    assert found["alone_ms_p50"] > 10.0
    assert found["added_p99"] == found["attacked_ms_p99"] / found["alone_ms_p99"] - 1


def test_the_sums() -> None:
    alone = [Answer(200, 1.0, float(ms)) for ms in range(1, 101)]
    attacked = [Answer(200, 1.0, ms * 1.05) for ms in range(1, 101)]
    found = report(GatewayOptions(), {"alone": alone, "attacked": attacked})
    assert found["added_p99"] == pytest.approx(0.05)
    assert found["passed"]
    slower = [Answer(200, 1.0, ms * 1.2) for ms in range(1, 101)]
    assert not report(GatewayOptions(), {"alone": alone, "attacked": slower})["passed"]


def test_wrong_answers_are_no_figures() -> None:
    with pytest.raises(LaunchError, match="1 of 1 answers had a status like 503"):
        report(GatewayOptions(), {"alone": [Answer(503, 1.0, 1.0)], "attacked": []})
