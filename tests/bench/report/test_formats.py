"""Requests in AIPerf's format, with hand-computed values."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.bench.report.made_runs import SLO, answered, failed, made_run

from forebay.bench.metrics import RequestSlo
from forebay.bench.records import Chunk, RequestRecord
from forebay.bench.report.formats import aiperf_records, vllm_result, wall_clock_ns

BEGAN_NS = 1_795_446_000_250_000_000


def records(*given: RequestRecord) -> list[dict[str, Any]]:
    return list(aiperf_records(made_run(records=given)))


def test_an_answered_request() -> None:
    (found,) = records(answered(3, 1.0, 1.25, 1.5, 1.75, 2.25, cached_tokens=4))
    assert found == {
        "metadata": {
            "session_num": 3,
            "turn_index": 0,
            "credit_issued_ns": BEGAN_NS + 1_000_000_000,
            "request_start_ns": BEGAN_NS + 1_250_000_000,
            "request_end_ns": BEGAN_NS + 2_260_000_000,
            "worker_id": "forebay",
            "record_processor_id": "forebay",
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": 7, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "output_token_count": {"value": 3, "unit": "tokens"},
            "usage_prompt_tokens": {"value": 7, "unit": "tokens"},
            "usage_completion_tokens": {"value": 3, "unit": "tokens"},
            "usage_total_tokens": {"value": 10, "unit": "tokens"},
            "usage_prompt_cache_read_tokens": {"value": 4, "unit": "tokens"},
            "time_to_first_token": {"value": 250.0, "unit": "ms"},
            "time_to_second_token": {"value": 250.0, "unit": "ms"},
            "request_latency": {"value": 1000.0, "unit": "ms"},
            "decode_duration": {"value": 750.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [250.0, 500.0], "unit": "ms"},
            "inter_token_latency": {"value": 375.0, "unit": "ms"},
            "prefill_throughput_per_user": {"value": 28.0, "unit": "tokens/sec/user"},
            "e2e_output_token_throughput": {"value": 3.0, "unit": "tokens/sec/user"},
            "output_token_throughput_per_user": {
                "value": pytest.approx(1 / 0.375),
                "unit": "tokens/sec/user",
            },
        },
    }


def test_a_failed_request_and_one_never_sent() -> None:
    refused, unsent = records(
        failed(0, 2.0, "503: overloaded"), failed(1, 3.0, "interrupted", sent_s=None, status=None)
    )
    assert refused["metrics"] == {"error_isl": {"value": 7, "unit": "tokens"}}
    assert refused["error"] == {"code": 503, "type": "RequestFailed", "message": "503: overloaded"}
    assert refused["metadata"]["was_cancelled"] is False
    assert unsent["error"] == {"type": "NotSent", "message": "interrupted"}
    assert unsent["metadata"]["was_cancelled"] is True
    assert unsent["metadata"]["request_start_ns"] == unsent["metadata"]["request_end_ns"]


def test_unreported_values_are_omitted() -> None:
    chunks = (Chunk(1.5), Chunk(2.0))
    (found,) = records(RequestRecord(0, 1.0, 1.25, 2.0, chunks=chunks))
    assert set(found["metrics"]) == {
        "time_to_first_token",
        "time_to_second_token",
        "request_latency",
        "decode_duration",
        "inter_chunk_latency",
    }


def test_extra_tokens_of_the_first_chunk_have_no_gap() -> None:
    record = RequestRecord(0, 0.0, 0.0, 2.0, chunks=(Chunk(1.0, 3), Chunk(2.0, 2)), output_tokens=5)
    (found,) = records(record)
    assert found["metrics"]["inter_token_latency"]["value"] == 500.0


def test_sessions_are_numbered_by_start() -> None:
    found = records(*(answered(index, session=name) for index, name in enumerate("babb")))
    assert [
        (one["metadata"]["session_num"], one["metadata"]["conversation_id"], one["metadata"]["turn_index"])
        for one in found
    ] == [(0, "b", 0), (1, "a", 0), (0, "b", 1), (0, "b", 2)]


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


def test_without_an_answer_there_is_no_figure() -> None:
    found = vllm_result(made_run(records=(failed(0, 1.0),)), SLO)
    assert (found["completed"], found["failed"], found["request_goodput"]) == (0, 1, 0.0)
    assert {found[name] for name in FIGURES} == {None}


def test_chunks_are_counted_if_the_server_reports_no_tokens() -> None:
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


@pytest.mark.parametrize("began_at", ["2026-11-23T15:00:00.25Z", "2026-11-23T16:00:00.250000+01:00"])
def test_times_are_those_of_the_wall_clock(began_at: str) -> None:
    assert wall_clock_ns(began_at) == BEGAN_NS
    assert wall_clock_ns("2026-11-23T15:00:00.250000") == BEGAN_NS


def test_a_percentile_of_too_few_samples_is_null() -> None:
    few, many = (
        vllm_result(made_run(requests=100, failing=0)),
        vllm_result(made_run(requests=1000, failing=0)),
    )
    assert few["p90_ttft_ms"] > 0
    assert few["p99_ttft_ms"] is None
    assert many["p99_ttft_ms"] > many["p90_ttft_ms"]


def test_a_burst_and_a_closed_loop_have_no_rate() -> None:
    found = vllm_result(made_run(asked={"schedule": {"kind": "closed", "concurrency": 4}}))
    assert (found["request_rate"], found["max_concurrency"], found["request_goodput"]) == ("inf", 4, None)
