"""A run in the keys of `vllm bench serve --save-result --save-detailed` (vLLM 0.32), with their meanings.

- All times start when a request was sent (*service* times), and an answer ends at its last chunk with
  content. `itls` are gaps between chunks, whatever a chunk holds; the `itl` figures pool them.
- `request_goodput` is good requests per second, by service times. A request of one token has TPOT 0.
- `start_times` are seconds after the start of the run. `queue_times` are schedule delays: from due to sent.
- `generated_texts` are empty: answers are not kept.
- Figures of too few samples are null (1,000 for p99), while vLLM prints the largest sample; so are figures
  without samples, for which it prints 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from statistics import fmean, pstdev
from typing import Any

from forebay.bench.metrics import RequestSlo, output_tokens, prompt_tokens, request_figures
from forebay.bench.records import LoadRun, RequestRecord
from forebay.bench.report.loads import burstiness, concurrency, rate_per_s
from forebay.bench.statistics import can_tell, percentile

PERCENTILES = (50, 90, 95, 99)


def vllm_result(run: LoadRun, slo: RequestSlo | None = None) -> dict[str, Any]:
    """The run as one JSON value. `slo` applies to service times, as in vLLM."""
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
        enough = can_tell(len(ordered), number)
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
