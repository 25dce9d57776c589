"""Runs in the formats of AIPerf 0.13 and of `vllm bench serve` (vLLM 0.32)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from statistics import fmean, pstdev
from typing import Any

from forebay.bench.metrics import RequestFigures, RequestSlo, output_tokens, prompt_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.report.figures_table import burstiness, concurrency, rate_per_s
from forebay.bench.statistics import percentile, suffices

MS = "ms"
TOKENS = "tokens"
PER_USER = "tokens/sec/user"


def aiperf_records(run: LoadRun) -> Iterator[dict[str, Any]]:
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


PERCENTILES = (50, 90, 95, 99)


def vllm_result(run: LoadRun, slo: RequestSlo | None = None) -> dict[str, Any]:
    answers = [_Answer(record) for record in run.records]
    good = [answer for answer in answers if answer.succeeded]
    duration_s = run.duration_s
    total_input = sum(answer.prompt_tokens for answer in good)
    total_output = sum(answer.output_tokens for answer in good)
    tokens_per_s, concurrent = _peaks(good)
    found: dict[str, Any] = {
        **_settings(run),
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": _rate(len(good), duration_s),
        "request_goodput": None if slo is None else _rate(sum(a.keeps(slo) for a in good), duration_s),
        "output_throughput": _rate(total_output, duration_s),
        "total_token_throughput": _rate(total_input + total_output, duration_s),
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": [answer.output_tokens if answer.succeeded else 0 for answer in answers],
        "ttfts": [answer.ttft_s for answer in answers],
        "itls": [list(answer.gaps_s) for answer in answers],
        "latencies": [answer.latency_s for answer in answers],
        "start_times": [answer.sent_s for answer in answers],
        "queue_times": [answer.delay_s for answer in answers],
        "generated_texts": ["" for _ in answers],
        "errors": [answer.error for answer in answers],
        "max_output_tokens_per_s": tokens_per_s,
        "max_concurrent_requests": concurrent,
        "rtfx": 0.0,
    }
    for name, values in (
        ("ttft", [answer.ttft_s for answer in good]),
        ("tpot", [answer.tpot_s for answer in good if answer.output_tokens > 1]),
        ("itl", [gap for answer in good for gap in answer.gaps_s]),
        ("e2el", [answer.latency_s for answer in good]),
    ):
        found |= _figures(name, values)
    return found


class _Answer:
    def __init__(self, record: RequestRecord) -> None:
        figures = request_figures(record)
        self.succeeded = figures is not None and figures.service_ttft_s is not None
        self.error = record.error or ("" if self.succeeded else "no content was received")
        self.sent_s = record.due_s if record.sent_s is None else record.sent_s
        self.delay_s = self.sent_s - record.due_s
        self.ttft_s = self.latency_s = 0.0
        self.gaps_s: tuple[float, ...] = ()
        if figures is not None and figures.service_ttft_s is not None:
            self.ttft_s, self.latency_s = figures.service_ttft_s, figures.service_e2el_s
            self.gaps_s = figures.chunk_gaps_s
        self.prompt_tokens = prompt_tokens(record) or 0
        # Without counts, each chunk is at least one token.
        self.output_tokens = output_tokens(record) or len(record.chunks)
        later = self.output_tokens - 1
        self.tpot_s = (self.latency_s - self.ttft_s) / later if later > 0 else 0.0

    def keeps(self, slo: RequestSlo) -> bool:
        bounds = ((slo.ttft_s, self.ttft_s), (slo.tpot_s, self.tpot_s), (slo.e2el_s, self.latency_s))
        return all(bound is None or value <= bound for bound, value in bounds)


def _settings(run: LoadRun) -> dict[str, Any]:
    asked, origin = run.asked, run.provenance
    rate = rate_per_s(asked)
    return {
        "date": datetime.fromisoformat(run.began_at.replace("Z", "+00:00")).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": origin.get("target"),
        "backend": origin.get("target"),
        "label": None,
        "model_id": origin.get("model"),
        "tokenizer_id": origin.get("tokenizer") or origin.get("model"),
        "num_prompts": len(run.records),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": burstiness(asked),
        "max_concurrency": concurrency(asked),
    }


def _figures(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(value * 1000 for value in values_s)
    found: dict[str, float | None] = {
        f"mean_{name}_ms": fmean(ordered) if ordered else None,
        f"median_{name}_ms": percentile(ordered, 50) if ordered else None,
        f"std_{name}_ms": pstdev(ordered) if ordered else None,
    }
    for number in PERCENTILES:
        enough = suffices(len(ordered), number)
        found[f"p{number}_{name}_ms"] = percentile(ordered, number) if enough else None
    return found


def _peaks(good: Sequence[_Answer]) -> tuple[float, int]:
    if not good:
        return 0.0, 0
    began_s = min(answer.sent_s for answer in good)
    seconds = math.ceil(max(answer.sent_s + answer.latency_s for answer in good) - began_s) + 1
    tokens, starts = [0] * seconds, [0] * (seconds + 1)
    for answer in good:
        at_s = answer.sent_s + answer.ttft_s - began_s
        for gap_s in (0.0, *answer.gaps_s):
            at_s += gap_s
            tokens[int(at_s)] += 1
        starts[int(answer.sent_s - began_s)] += 1
        starts[int(answer.sent_s + answer.latency_s - began_s) + 1] -= 1
    under_way = most = 0
    for change in starts:
        under_way += change
        most = max(most, under_way)
    return float(max(tokens)), most


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
