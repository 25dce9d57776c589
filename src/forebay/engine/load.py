"""A replica's load: from the header of an answer and from the text of `/metrics`.

Names are vLLM's. Anything missing or unreadable is None, never an error: load only corrects our own counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from forebay.records import ReplicaLoad

LOAD_REQUEST_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"
MAX_HEADER_CHARS = 4096

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Share of the KV cache in use, 0 to 1, despite the name. The second is that of older servers."""

CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{([^\n]{0,8192})\}[ \t]", re.MULTILINE)
SIZE_LABEL = re.compile(r'(?:^|,)(block_size|num_gpu_blocks)="([0-9]{1,12})"')

SAMPLE = re.compile(
    r'^(vllm:[a-zA-Z0-9_:]+)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?[ \t]+([^ \t\r\n]{1,40})', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ReplicaCounters:
    """Totals since the replica started, over all its engines and models; None if it does not report them.
    Prefix cache queries and hits are in tokens.
    """

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None


def parse_load_header(value: str | None, *, observed_s: float) -> ReplicaLoad | None:
    if not value or len(value) > MAX_HEADER_CHARS or not value[:5].upper().startswith("TEXT "):
        return None
    found: dict[str, float] = {}
    for pair in value[5:].split(","):
        name, _, number = pair.strip().partition("=")
        amount = _amount(number)
        if amount is not None:
            found[name.removeprefix("named_metrics.")] = amount
    usage = found.get("kv_cache_usage_perc", found.get("gpu_cache_usage_perc"))
    load = ReplicaLoad(
        observed_s, found.get("num_requests_running"), found.get("num_requests_waiting"), usage
    )
    return None if load == ReplicaLoad(observed_s) else load


def parse_metrics(text: str, *, observed_s: float) -> tuple[ReplicaLoad, ReplicaCounters]:
    """Load and counters in the Prometheus text of `/metrics`.

    Samples of one name (one per engine of a data-parallel replica) are added up, except the KV cache's share:
    the fullest engine is the first to preempt.
    """
    total: dict[str, float] = {}
    highest: dict[str, float] = {}
    for name, value in _samples(text):
        total[name] = total.get(name, 0.0) + value
        highest[name] = max(highest.get(name, value), value)
    usage = next((highest[name] for name in KV_USAGE if name in highest), None)
    return (
        ReplicaLoad(observed_s, total.get(RUNNING), total.get(WAITING), usage),
        ReplicaCounters(
            prompt_tokens=total.get("vllm:prompt_tokens_total"),
            generation_tokens=total.get("vllm:generation_tokens_total"),
            preemptions=total.get("vllm:num_preemptions_total"),
            prefix_cache_queries=total.get("vllm:prefix_cache_queries_total"),
            prefix_cache_hits=total.get("vllm:prefix_cache_hits_total"),
        ),
    )


def parse_cache_tokens(text: str) -> float | None:
    total = 0.0
    for config in CACHE_CONFIG.finditer(text):
        sizes = dict(SIZE_LABEL.findall(config[1]))
        total += float(sizes.get("block_size", 0)) * float(sizes.get("num_gpu_blocks", 0))
    return total or None


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for match in SAMPLE.finditer(text):
        amount = _amount(match[2])
        if amount is not None:
            yield match[1], amount


def _amount(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
