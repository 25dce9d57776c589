"""Requests in AIPerf's format, with hand-computed values."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench.report.made_runs import answered, failed, made_run

from forebay.bench.records import Chunk, LoadRun, RequestRecord
from forebay.bench.report.formats import aiperf_records, wall_clock_ns

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


def test_what_a_server_does_not_tell_is_left_out() -> None:
    chunks = (Chunk(1.5), Chunk(2.0))
    (found,) = records(RequestRecord(0, 1.0, 1.25, 2.0, chunks=chunks))
    assert set(found["metrics"]) == {
        "time_to_first_token",
        "time_to_second_token",
        "request_latency",
        "decode_duration",
        "inter_chunk_latency",
    }


def test_a_first_chunk_of_several_tokens_is_no_token_that_was_waited_for() -> None:
    record = RequestRecord(0, 0.0, 0.0, 2.0, chunks=(Chunk(1.0, 3), Chunk(2.0, 2)), output_tokens=5)
    (found,) = records(record)
    assert found["metrics"]["inter_token_latency"]["value"] == 500.0


def test_sessions_are_counted_in_the_order_in_which_they_began() -> None:
    found = records(*(answered(index, session=name) for index, name in enumerate("babb")))
    assert [
        (one["metadata"]["session_num"], one["metadata"]["conversation_id"], one["metadata"]["turn_index"])
        for one in found
    ] == [(0, "b", 0), (1, "a", 0), (0, "b", 1), (0, "b", 2)]


@pytest.mark.parametrize("began_at", ["2026-11-23T15:00:00.25Z", "2026-11-23T16:00:00.250000+01:00"])
def test_times_are_those_of_the_wall_clock(began_at: str) -> None:
    assert wall_clock_ns(began_at) == BEGAN_NS
    assert wall_clock_ns("2026-11-23T15:00:00.250000") == BEGAN_NS


def test_a_whole_run_has_a_line_a_request() -> None:
    run: LoadRun = made_run(requests=50)
    assert len(list(aiperf_records(run))) == 50
