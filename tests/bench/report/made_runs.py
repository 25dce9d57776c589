"""Hand-made runs for tests of reports."""

from __future__ import annotations

import random
from typing import Any

from forebay.bench.metrics import RequestSlo, run_figures
from forebay.bench.records import Chunk, EngineSample, LoadRun, RequestRecord
from forebay.bench.report.document import MeasuredRun
from forebay.bench.verdict import Verdict

BEGAN_AT = "2026-11-23T15:00:00.250000+00:00"
SLO = RequestSlo(ttft_s=0.5, tpot_s=0.05, e2el_s=3.0)


def answered(
    index: int = 0, due_s: float = 1.0, sent_s: float = 1.25, *at_s: float, **values: Any
) -> RequestRecord:
    """A request with chunks at these times, one token each."""
    chunks = tuple(Chunk(at, 1) for at in at_s or (1.5, 1.75, 2.25))
    given: dict[str, Any] = {
        "prompt_tokens": 7,
        "output_tokens": len(chunks),
        "asked_prompt_tokens": 7,
        "asked_output_tokens": len(chunks),
        "finish_reason": "length",
        "status": 200,
    }
    return RequestRecord(
        index=index,
        due_s=due_s,
        sent_s=sent_s,
        first_byte_s=chunks[0].at_s,
        chunks=chunks,
        ended_s=chunks[-1].at_s + 0.01,
        **(given | values),
    )


def failed(index: int, due_s: float, error: str = "503: overloaded", **values: Any) -> RequestRecord:
    given: dict[str, Any] = {"sent_s": due_s, "status": 503, "asked_prompt_tokens": 7}
    return RequestRecord(index=index, due_s=due_s, ended_s=due_s + 0.1, error=error, **(given | values))


def made_run(
    *,
    requests: int = 40,
    rate_per_s: float = 10.0,
    tokens: int = 12,
    seed: int = 0,
    slower: float = 1.0,
    failing: float = 0.05,
    **changes: Any,
) -> LoadRun:
    chance = random.Random(seed)
    records: list[RequestRecord] = []
    due_s, ends = 0.0, []
    for index in range(requests):
        due_s += chance.expovariate(rate_per_s)
        sent_s = due_s + chance.expovariate(2000)
        if chance.random() < failing:
            records.append(failed(index, due_s))
            continue
        under_way = sum(end > sent_s for end in ends)
        at_s = sent_s + (0.05 + 0.01 * under_way) * chance.uniform(0.8, 1.6) * slower
        times = []
        for _ in range(tokens):
            times.append(at_s)
            at_s += (0.012 + 0.0008 * under_way) * chance.uniform(0.7, 1.5) * slower
        ends.append(times[-1])
        records.append(answered(index, due_s, sent_s, *times, group=f"group {index % 3}"))
    duration_s = max(record.ended_s for record in records)
    samples = tuple(
        EngineSample(
            at_s=at_s,
            values={
                "running": float(sum(r.sent_s is not None and r.sent_s <= at_s < r.ended_s for r in records)),
                "waiting": 0.0,
                "kv_cache_usage": min(1.0, 0.01 * at_s),
                "preemptions": 0.0,
                "prefix_cache_hit_share": 0.5,
                "prefix_cache_queries": 100 * at_s,
                "prefix_cache_hits": 50 * at_s,
                "prompt_tokens": 100 * at_s,
                "generation_tokens": 40 * at_s,
                "engine_memory_mb": 812.0,
                "engine_cores": 1.25,
                "gpu0_busy": 0.75,
                "gpu0_memory_mb": 61_000.0,
                "gpu0_power_w": 510.0,
            },
        )
        for at_s in (step * duration_s / 30 for step in range(31))
    )
    given: dict[str, Any] = {
        "began_at": BEGAN_AT,
        "duration_s": duration_s,
        "asked": {
            "schedule": {"kind": "poisson", "rate_per_s": rate_per_s},
            "workload": {
                "kind": "random_tokens",
                "prompt": {"kind": "exactly", "tokens": 7},
                "output": {"kind": "exactly", "tokens": tokens},
                "exact": True,
            },
            "requests": requests,
            "seed": seed,
            "nonce": f"nonce {seed}",
        },
        "records": tuple(records),
        "samples": samples,
        "provenance": {
            "command": "forebay bench serve http://127.0.0.1:8100 --rate 10",
            "target": "openai",
            "model": "smollm2-135m-instruct",
            "versions": {"forebay": "0.1.0", "python": "3.11.7"},
        },
    }
    return LoadRun(**(given | changes))


def measured(run: LoadRun, slo: RequestSlo | None = SLO, verdict: Verdict | None = None) -> MeasuredRun:
    return MeasuredRun(run, run_figures(run, slo), slo, verdict)


VALID = Verdict((), ("schedule delay: at most 2.1 ms",), None, 0.0021)


def invalid(*reasons: str) -> Verdict:
    return Verdict(reasons, (), 0.0213, 0.0408)
