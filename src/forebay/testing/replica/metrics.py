"""A fake replica's load in vLLM's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "request_success",
)


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    running: int
    waiting: int
    kv_usage: float


def metrics_text(model: str, load: ReportedLoad, totals: Mapping[str, int], *, kv_tokens: int = 0) -> str:
    labels = f'{{engine="0",model_name="{model}"}}'
    gauges = {
        "num_requests_running": load.running,
        "num_requests_waiting": load.waiting,
        "kv_cache_usage_perc": load.kv_usage,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{labels} {float(value)}"]
    for name in COUNTERS:
        total = float(totals.get(name, 0))
        lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{labels} {total}"]
    if kv_tokens:
        sizes = f'block_size="1",engine="0",num_gpu_blocks="{kv_tokens}"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{sizes}}} 1.0"]
    return "\n".join(lines) + "\n"


def load_headers(load: ReportedLoad) -> dict[str, str]:
    return {
        "endpoint-load-metrics": (
            f"TEXT named_metrics.num_requests_waiting={float(load.waiting)},"
            f" named_metrics.kv_cache_usage_perc={load.kv_usage}"
        )
    }
