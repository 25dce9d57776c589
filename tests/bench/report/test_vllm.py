"""A run with the keys of `vllm bench serve`: hand-computed, and against vLLM's own arithmetic."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.bench.report.made_runs import SLO, answered, failed, made_run

from forebay.bench.metrics import RequestSlo
from forebay.bench.records import Chunk, RequestRecord
from forebay.bench.report.formats import vllm_result

SETTINGS = {
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
}
RESULTS = {
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "rtfx",
}
FIGURES = {
    f"{statistic}_{metric}_ms"
    for metric in ("ttft", "tpot", "itl", "e2el")
    for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
}


def test_every_key_by_hand() -> None:
    run = made_run(
        records=(
            answered(0, 1.0, 1.25, 1.5, 1.75, 2.25),
            answered(1, 1.5, 1.5, 2.0),
            failed(2, 3.0, "503: overloaded"),
        ),
        duration_s=4.0,
    )
    found = vllm_result(run, RequestSlo(ttft_s=0.3))
    assert set(found) == SETTINGS | RESULTS | FIGURES
    assert {name: found[name] for name in SETTINGS} == {
        "date": "20261123-150000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "smollm2-135m-instruct",
        "tokenizer_id": "smollm2-135m-instruct",
        "num_prompts": 3,
        "request_rate": 10.0,
        "burstiness": 1.0,
        "max_concurrency": None,
    }
    assert {name: found[name] for name in RESULTS} == {
        "duration": 4.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 14,
        "total_output_tokens": 4,
        "request_throughput": 0.5,
        "request_goodput": 0.25,
        "output_throughput": 1.0,
        "total_token_throughput": 4.5,
        "input_lens": [7, 7, 7],
        "output_lens": [3, 1, 0],
        "ttfts": [0.25, 0.5, 0.0],
        "itls": [[0.25, 0.5], [], []],
        "latencies": [1.0, 0.5, 0.0],
        "start_times": [1.25, 1.5, 3.0],
        "queue_times": [0.25, 0.0, 0.0],
        "generated_texts": ["", "", ""],
        "errors": ["", "", "503: overloaded"],
        "max_output_tokens_per_s": 3.0,
        "max_concurrent_requests": 2,
        "rtfx": 0.0,
    }
    assert {name: found[name] for name in FIGURES if name.startswith(("mean", "median", "std"))} == {
        "mean_ttft_ms": 375.0,
        "median_ttft_ms": 375.0,
        "std_ttft_ms": 125.0,
        "mean_tpot_ms": 375.0,
        "median_tpot_ms": 375.0,
        "std_tpot_ms": 0.0,
        "mean_itl_ms": 375.0,
        "median_itl_ms": 375.0,
        "std_itl_ms": 125.0,
        "mean_e2el_ms": 750.0,
        "median_e2el_ms": 750.0,
        "std_e2el_ms": 250.0,
    }


def test_a_percentile_of_too_few_samples_is_null() -> None:
    few, many = (
        vllm_result(made_run(requests=100, failing=0)),
        vllm_result(made_run(requests=1000, failing=0)),
    )
    assert few["p90_ttft_ms"] > 0
    assert few["p99_ttft_ms"] is None
    assert many["p99_ttft_ms"] > many["p90_ttft_ms"]


def test_without_an_answer_there_is_no_figure() -> None:
    found = vllm_result(made_run(records=(failed(0, 1.0),)), SLO)
    assert (found["completed"], found["failed"], found["request_goodput"]) == (0, 1, 0.0)
    assert {found[name] for name in FIGURES} == {None}


def test_a_burst_and_a_closed_loop_have_no_rate() -> None:
    found = vllm_result(made_run(asked={"schedule": {"kind": "closed", "concurrency": 4}}))
    assert (found["request_rate"], found["max_concurrency"], found["request_goodput"]) == ("inf", 4, None)


def test_chunks_are_counted_where_the_server_counts_nothing() -> None:
    found = vllm_result(made_run(records=(RequestRecord(0, 0.0, 0.0, 2.0, chunks=(Chunk(1.0), Chunk(2.0))),)))
    assert (found["output_lens"], found["mean_tpot_ms"]) == ([2], 1000.0)


def test_an_answer_without_content_has_failed() -> None:
    found = vllm_result(made_run(records=(RequestRecord(0, 0.0, 0.0, 2.0, output_tokens=3),)))
    assert (found["failed"], found["errors"]) == (1, ["no content was received"])


VLLM = """
import json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
given = json.load(sys.stdin)
found, lens = calculate_metrics(
    [], [RequestFuncOutput(**one) for one in given["outputs"]], given["duration"], None, [50, 90, 95, 99],
    {"ttft": 100, "tpot": 20},
)
values = {name: getattr(found, name) for name in found.__dataclass_fields__}
for metric in ("ttft", "tpot", "itl", "e2el"):
    for number, value in values.pop(f"percentiles_{metric}_ms"):
        values[f"p{number}_{metric}_ms"] = value
sys.stdout.write("\\n" + json.dumps({"lens": lens, "values": {k: float(v) for k, v in values.items()}}))
"""
NAMES = {
    "total_input": "total_input_tokens",
    "total_output": "total_output_tokens",
}


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.slow
def test_the_figures_are_those_of_vllm_itself() -> None:
    """vLLM's own function computes the result's figures from the same requests."""
    from forebay.engine.launch import Silent, ensure_engine
    from forebay.engine.launch.environment import engine_python
    from forebay.settings import load_settings

    settings = load_settings()
    ensure_engine(settings, Silent())
    run = made_run(requests=1500, rate_per_s=40, failing=0.02)
    found = vllm_result(run, RequestSlo(ttft_s=0.1, tpot_s=0.02))
    outputs: list[dict[str, Any]] = [
        {
            "success": not found["errors"][number],
            "ttft": found["ttfts"][number],
            "itl": found["itls"][number],
            "latency": found["latencies"][number],
            "prompt_len": found["input_lens"][number],
            "output_tokens": found["output_lens"][number],
            "start_time": found["start_times"][number],
            "error": found["errors"][number],
        }
        for number in range(1500)
    ]
    done = subprocess.run(
        [engine_python(settings), "-c", VLLM],
        input=json.dumps({"outputs": outputs, "duration": run.duration_s}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs["lens"] == found["output_lens"]
    assert {NAMES.get(name, name) for name in theirs["values"]} <= set(found)
    for name, value in theirs["values"].items():
        assert found[NAMES.get(name, name)] == pytest.approx(value, rel=1e-9), name
    assert 0 < found["request_goodput"] < found["request_throughput"]
