"""A run as llm-d's Benchmark Report v0.2.1, which `--format br` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from forebay.bench.metrics import Distribution, distribution, output_tokens, request_figures
from forebay.bench.records import EngineSample, LoadRun
from forebay.bench.report.document import MeasuredRun, verdict_document
from forebay.bench.report.figures_table import concurrency, kind, load_name, rate_per_s
from forebay.bench.report.formats import wall_clock_ns

VERSION = "0.2.1"
MAX_POINTS = 500
NAMES = {0.1: "p0p1", 99.9: "p99p9"}
ENGINE = "engine"
SOURCES = {
    "random tokens": "random",
    "random words": "random",
    "prefix groups": "random",
    "sessions": "random",
    "trace": "random",
    "jsonl": "sampled",
    "sharegpt": "sampled",
}

SIGNALS: Mapping[str, tuple[str, str | None, str, float]] = {
    "running": ("num_requests_running", "running_requests", "count", 1),
    "waiting": ("num_requests_waiting", "waiting_requests", "count", 1),
    "kv_cache_usage": ("kv_cache_usage", "kv_cache_usage", "percent", 100),
    "prefix_cache_hit_share": ("prefix_cache_hit_rate", "cache_hit_rate", "percent", 100),
    "preemptions": ("num_preemptions", None, "count", 1),
    "prefix_cache_queries": ("prefix_cache_queries", None, "count", 1),
    "prefix_cache_hits": ("prefix_cache_hits", None, "count", 1),
    "prompt_tokens": ("prompt_tokens", None, "count", 1),
    "generation_tokens": ("generation_tokens", None, "count", 1),
    "engine_memory_mb": ("cpu_memory_usage", "cpu_memory_usage", "MB", 1),
    "gpu0_busy": ("gpu_utilization", "gpu_utilization", "percent", 100),
    "gpu0_memory_mb": ("gpu_memory_usage", "gpu_memory_usage", "MB", 1),
    "gpu0_power_w": ("power_consumption", "power_consumption", "Watts", 1),
}
"""Our samples: names in a series and in an aggregate, unit, our value in that unit."""


def benchmark_report(measured: MeasuredRun, version: str) -> dict[str, Any]:
    run, figures = measured.run, measured.figures
    began = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(
        microseconds=wall_clock_ns(run.began_at) // 1000
    )
    asked = {name: value for name, value in run.asked.items() if value is not None}
    tokens = figures.distributions
    unsent = sum(record.sent_s is None for record in run.records)
    label = load_name(run.asked)
    model = run.provenance.get("model")
    verdict = [measured.word] if measured.word else []
    reasons = measured.verdict.reasons if measured.verdict else ()
    component: dict[str, Any] = {
        "metadata": {"label": ENGINE, "cfg_id": _hash(run.provenance)},
        "standardized": {
            "kind": "generic",
            "tool": str(run.provenance.get("target") or "unknown"),
            "tool_version": str(run.provenance.get("engine_version") or "unknown"),
        },
        "native": {"config": dict(run.provenance)},
    }
    if model is not None:
        component["standardized"]["model"] = {"name": str(model)}
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid5(NAMESPACE_URL, f"forebay-bench:{run.began_at}:{_hash(asked)}")),
            "time": {
                "start": began.isoformat(),
                "end": (began + timedelta(seconds=run.duration_s)).isoformat(),
                "duration": f"PT{run.duration_s:.6f}S",
            },
            "description": " ".join([f"{model or 'unknown model'} [{label}]", *verdict, *reasons]),
            "keywords": ["forebay", *verdict],
        },
        "scenario": {
            "stack": [component],
            "load": {
                "metadata": {"cfg_id": _hash(asked), "description": label},
                "standardized": _load(asked, tokens, version),
                "native": {"config": asked},
            },
        },
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": {
                        "total": figures.offered,
                        "failures": figures.failed - unsent,
                        "incomplete": unsent,
                        **_statistics("input_length", tokens.get("prompt_tokens"), "count"),
                        **_statistics("output_length", tokens.get("output_tokens"), "count"),
                    },
                    "latency": {
                        **_statistics("time_to_first_token", tokens.get("service_ttft"), "s"),
                        **_statistics("normalized_time_per_output_token", _time_per_token(run), "s/token"),
                        **_statistics("time_per_output_token", tokens.get("tpot"), "s/token"),
                        **_statistics("inter_token_latency", tokens.get("token_gap"), "s/token"),
                        **_statistics("request_latency", tokens.get("service_e2el"), "s"),
                    },
                    "throughput": _throughput(measured),
                }
            },
            **_observability(run.samples, began),
            "profiling": {
                "forebay": {
                    "verdict": verdict_document(measured.verdict),
                    "complete": run.complete,
                    "slo": None if measured.slo is None else asdict(measured.slo),
                    "goodput": figures.goodput,
                    "good_requests_per_s": figures.good_requests_per_s,
                    "response_time_to_first_token": _values(tokens.get("ttft"), "s"),
                    "response_request_latency": _values(tokens.get("e2el"), "s"),
                    "schedule_delay": _values(tokens.get("schedule_delay"), "s"),
                }
            },
        },
    }


def _load(asked: Mapping[str, Any], found: Mapping[str, Distribution], version: str) -> dict[str, Any]:
    rate, in_flight = rate_per_s(asked), concurrency(asked)
    workload = kind(asked, "workload")
    return {
        "tool": "forebay",
        "tool_version": version,
        "source": SOURCES.get(workload, "unknown"),
        "input_seq_len": _length(found.get("prompt_tokens")) or {"distribution": "other", "value": 0},
        **({"output_seq_len": length} if (length := _length(found.get("output_tokens"))) else {}),
        **({"rate_qps": float(rate)} if rate else {}),
        **({"concurrency": in_flight} if in_flight else {}),
    }


def _length(found: Distribution | None) -> dict[str, Any] | None:
    if found is None:
        return None
    if found.minimum == found.maximum:
        return {"distribution": "fixed", "value": int(found.minimum)}
    bounds = {"min": int(found.minimum), "max": max(1, int(found.maximum))}
    return {"distribution": "other", "value": found.mean, "std_dev": found.std, **bounds}


def _statistics(name: str, found: Distribution | None, units: str) -> dict[str, Any]:
    values = _values(found, units)
    return {} if values is None else {name: values}


def _values(found: Distribution | None, units: str) -> dict[str, Any] | None:
    if found is None:
        return None
    percentiles = {NAMES.get(number, f"p{number:g}"): value for number, value in found.percentiles.items()}
    return {
        "units": units,
        "mean": found.mean,
        "stddev": found.std,
        "min": found.minimum,
        **percentiles,
        "max": found.maximum,
    }


def _time_per_token(run: LoadRun) -> Distribution | None:
    values = [
        figures.service_e2el_s / count
        for record in run.records
        if (figures := request_figures(record)) is not None and (count := output_tokens(record))
    ]
    return distribution(values)


def _throughput(measured: MeasuredRun) -> dict[str, Any]:
    figures = measured.figures
    output, total = figures.output_tokens_per_s, figures.total_tokens_per_s
    rates = {
        "input_token_rate": (None if output is None or total is None else total - output, "tokens/s"),
        "output_token_rate": (output, "tokens/s"),
        "total_token_rate": (total, "tokens/s"),
        "request_rate": (figures.requests_per_s, "queries/s"),
    }
    return {name: {"units": units, "mean": mean} for name, (mean, units) in rates.items() if mean is not None}


def _observability(samples: Sequence[EngineSample], began: datetime) -> dict[str, Any]:
    aggregate, series = {}, {}
    step = -(-len(samples) // MAX_POINTS) or 1
    for ours, (in_series, in_aggregate, units, scale) in SIGNALS.items():
        observed = [(each.at_s, each.values[ours] * scale) for each in samples if ours in each.values]
        found = distribution([value for _, value in observed])
        if found is None:
            continue
        if in_aggregate is not None:
            aggregate[in_aggregate] = _values(found, units)
        points = [
            {"ts": (began + timedelta(seconds=at_s)).isoformat(), "value": value}
            for at_s, value in observed[::step]
        ]
        series[in_series] = {"units": units, "series": points}
    if not series:
        return {}
    component = {"component_label": ENGINE, "aggregate": aggregate, "time_series": series}
    return {"observability": {"components": [component]}}


def _hash(value: Mapping[str, Any]) -> str:
    return sha256(orjson.dumps(dict(value), option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
