"""Requests as AIPerf's `profile_export.jsonl` has them, one JSON value each (AIPerf 0.13).

AIPerf counts from when a request was sent: *service* times. `credit_issued_ns`, when AIPerf's schedule
releases a request, is when it was due. Values that were not measured (`x_request_id`, `request_ack_ns`) are
absent, as in AIPerf.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from forebay.bench.metrics import RequestFigures, output_tokens, prompt_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord

MS = "ms"
TOKENS = "tokens"
PER_USER = "tokens/sec/user"


def aiperf_records(run: LoadRun) -> Iterator[dict[str, Any]]:
    """One value per request, in the order of the run's records. `session_num` counts sessions if the load has
    them, else requests."""
    began_ns = wall_clock_ns(run.began_at)
    sessions: dict[str, int] = {}
    turns: dict[str, int] = {}
    for record in run.records:
        session, turn = record.session, 0
        if session is not None:
            sessions.setdefault(session, len(sessions))
            turn = turns[session] = turns.get(session, -1) + 1
        metadata = {
            "session_num": record.index if session is None else sessions[session],
            **({} if session is None else {"conversation_id": session}),
            "turn_index": turn,
            "credit_issued_ns": began_ns + _ns(record.due_s),
            "request_start_ns": began_ns + _ns(record.ended_s if record.sent_s is None else record.sent_s),
            "request_end_ns": began_ns + _ns(record.ended_s),
            "worker_id": "forebay",
            "record_processor_id": "forebay",
            "benchmark_phase": "profiling",
            "was_cancelled": record.sent_s is None,
        }
        found = {"metadata": metadata, "metrics": _metrics(record)}
        if record.error is not None:
            found["error"] = _error(record)
        yield found


def wall_clock_ns(began_at: str) -> int:
    """An ISO 8601 time as nanoseconds since 1970; without a zone it is UTC."""
    at = datetime.fromisoformat(began_at.replace("Z", "+00:00"))
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    passed = at - epoch
    return ((passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds) * 1000


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _error(record: RequestRecord) -> dict[str, Any]:
    code = {} if record.status is None else {"code": record.status}
    return {**code, "type": "NotSent" if record.sent_s is None else "RequestFailed", "message": record.error}


def _metrics(record: RequestRecord) -> dict[str, Any]:
    """AIPerf's record metrics by its tags and in its units; for a failed request only its prompt's length."""
    prompt, output = prompt_tokens(record), output_tokens(record)
    figures = request_figures(record)
    if figures is None:
        return _valued({"error_isl": (prompt, TOKENS)})
    read = None if record.prompt_tokens is None or output is None else record.prompt_tokens + output
    return _valued(
        {
            "input_sequence_length": (prompt, TOKENS),
            "output_sequence_length": (output, TOKENS),
            "output_token_count": (output, TOKENS),
            "usage_prompt_tokens": (record.prompt_tokens, TOKENS),
            "usage_completion_tokens": (record.output_tokens, TOKENS),
            "usage_total_tokens": (read, TOKENS),
            "usage_prompt_cache_read_tokens": (record.cached_tokens, TOKENS),
            **_times(figures, prompt, output),
        }
    )


def _times(figures: RequestFigures, prompt: int | None, output: int | None) -> dict[str, tuple[Any, str]]:
    ttft_s, latency_s, itl_s = figures.service_ttft_s, figures.service_e2el_s, figures.itl_mean_s
    gaps_s = figures.chunk_gaps_s
    if ttft_s is None:
        return {}
    return {
        "time_to_first_token": (ttft_s * 1000, MS),
        "time_to_second_token": (gaps_s[0] * 1000 if gaps_s else None, MS),
        "request_latency": (latency_s * 1000, MS),
        "decode_duration": ((latency_s - ttft_s) * 1000, MS),
        "inter_chunk_latency": ([gap_s * 1000 for gap_s in gaps_s] or None, MS),
        "inter_token_latency": (None if itl_s is None else itl_s * 1000, MS),
        "prefill_throughput_per_user": (_per(prompt, ttft_s), PER_USER),
        "e2e_output_token_throughput": (_per(output, latency_s), PER_USER),
        "output_token_throughput_per_user": (_per(1, itl_s), PER_USER),
    }


def _per(count: int | None, seconds: float | None) -> float | None:
    return count / seconds if count is not None and seconds else None


def _valued(found: dict[str, tuple[Any, str]]) -> dict[str, Any]:
    return {
        name: {"value": value, "unit": unit} for name, (value, unit) in found.items() if value is not None
    }
