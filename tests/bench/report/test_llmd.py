"""llm-d's Benchmark Report: checked against its own schema if that is installed, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.bench.report.made_runs import SLO, VALID, answered, failed, invalid, made_run, measured

from forebay.bench.records import EngineSample, LoadRun
from forebay.bench.report.llmd import MAX_POINTS, benchmark_report


def report(run: LoadRun, **values: Any) -> dict[str, Any]:
    # As JSON: other values would fail here.
    found: dict[str, Any] = orjson.loads(orjson.dumps(benchmark_report(measured(run, **values), "0.1.0")))
    return found


def test_values_by_hand() -> None:
    run = made_run(
        records=(
            answered(0, 1.0, 1.25, 1.5, 1.75, 2.25),
            answered(1, 1.5, 1.5, 2.0),
            failed(2, 3.0),
            failed(3, 3.0, "interrupted", sent_s=None, status=None),
        ),
        duration_s=4.0,
        samples=(EngineSample(0.0, {"kv_cache_usage": 0.25}), EngineSample(1.0, {"kv_cache_usage": 0.75})),
    )
    found = report(run, verdict=invalid("1 of 4 requests failed"))
    assert found["version"] == "0.2.1"
    assert found["run"]["time"] == {
        "start": "2026-11-23T15:00:00.250000+00:00",
        "end": "2026-11-23T15:00:04.250000+00:00",
        "duration": "PT4.000000S",
    }
    assert found["run"]["description"] == (
        "smollm2-135m-instruct [10 requests/s] INVALID 1 of 4 requests failed"
    )
    assert found["scenario"]["load"]["standardized"] == {
        "tool": "forebay",
        "tool_version": "0.1.0",
        "source": "random",
        "input_seq_len": {"distribution": "fixed", "value": 7},
        "output_seq_len": {"distribution": "other", "value": 2.0, "std_dev": 1.0, "min": 1, "max": 3},
        "rate_qps": 10.0,
    }
    aggregate = found["results"]["request_performance"]["aggregate"]
    requests, latency = aggregate["requests"], aggregate["latency"]
    assert (requests["total"], requests["failures"], requests["incomplete"]) == (4, 1, 1)
    assert requests["output_length"] == {
        "units": "count",
        "mean": 2.0,
        "stddev": 1.0,
        "min": 1.0,
        "p50": 2.0,
        "max": 3.0,
    }
    assert {name: (one["units"], one["mean"]) for name, one in latency.items()} == {
        "time_to_first_token": ("s", 0.375),
        "normalized_time_per_output_token": ("s/token", pytest.approx((1 / 3 + 0.5) / 2)),
        "time_per_output_token": ("s/token", 0.375),
        "inter_token_latency": ("s/token", 0.375),
        "request_latency": ("s", 0.75),
    }
    assert aggregate["throughput"] == {
        "input_token_rate": {"units": "tokens/s", "mean": 3.5},
        "output_token_rate": {"units": "tokens/s", "mean": 1.0},
        "total_token_rate": {"units": "tokens/s", "mean": 4.5},
        "request_rate": {"units": "queries/s", "mean": 0.5},
    }
    (engine,) = found["results"]["observability"]["components"]
    assert engine["aggregate"]["kv_cache_usage"]["mean"] == 50.0
    assert engine["time_series"]["kv_cache_usage"]["series"] == [
        {"ts": "2026-11-23T15:00:00.250000+00:00", "value": 25.0},
        {"ts": "2026-11-23T15:00:01.250000+00:00", "value": 75.0},
    ]
    ours = found["results"]["profiling"]["forebay"]
    assert (ours["verdict"]["word"], ours["verdict"]["reasons"]) == ("INVALID", ["1 of 4 requests failed"])
    assert ours["response_time_to_first_token"]["mean"] == 0.5


RUNS = [
    pytest.param(made_run(requests=1200), {"verdict": VALID}, id="whole"),
    pytest.param(made_run(requests=3, samples=()), {"verdict": invalid("why")}, id="short"),
    pytest.param(made_run(records=(failed(0, 1.0),)), {}, id="all failed"),
    pytest.param(made_run(records=()), {}, id="empty"),
    pytest.param(made_run(asked={"schedule": {"kind": "closed", "concurrency": 8}}), {}, id="closed loop"),
    pytest.param(made_run(asked={}, provenance={}), {}, id="nothing told"),
    pytest.param(replace(made_run(), complete=False), {"slo": SLO}, id="interrupted"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("run", "values"), RUNS)
def test_it_keeps_the_schema_of_llm_d(run: LoadRun, values: dict[str, Any]) -> None:
    """The package's models check names, units and bounds; unknown fields are refused."""
    pytest.importorskip("llmd_benchmark_report", reason="needs Python 3.11")
    from llmd_benchmark_report import load_benchmark_report

    given = report(run, **values)
    assert load_benchmark_report(given).version == "0.2.1"
    given["results"]["request_performance"]["aggregate"]["latency"]["unheard_of"] = {
        "units": "s",
        "mean": 1.0,
    }
    with pytest.raises(ValueError, match="unheard_of"):
        load_benchmark_report(given)


def test_the_same_run_has_the_same_id_and_another_a_different_one() -> None:
    one = report(made_run())
    assert report(made_run())["run"]["uid"] == one["run"]["uid"]
    assert report(made_run(seed=1))["run"]["uid"] != one["run"]["uid"]


def test_number_of_points_of_a_long_run_is_bounded() -> None:
    samples = tuple(EngineSample(float(at), {"running": 1.0}) for at in range(3 * MAX_POINTS + 1))
    (engine,) = report(made_run(samples=samples))["results"]["observability"]["components"]
    assert MAX_POINTS / 2 < len(engine["time_series"]["num_requests_running"]["series"]) <= MAX_POINTS
