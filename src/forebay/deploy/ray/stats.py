"""What a replica reports to Serve. Pure, standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.engine.load import parse_cache_tokens, parse_metrics

STATS_PERIOD_S = 1.0


def replica_metadata(url: str, metrics: str | None) -> dict[str, Any]:
    tokens = parse_cache_tokens(metrics or "")
    return {"url": url} | ({} if tokens is None else {"kv_tokens": tokens})


def routing_stats(metrics: str | None) -> dict[str, Any]:
    if metrics is None:
        return {"away": True}
    load, _ = parse_metrics(metrics, observed_s=0.0)
    return {} if load.running is None else {"running": load.running, "waiting": load.waiting or 0.0}


@dataclass(frozen=True, slots=True)
class ReplicaSeen:
    """`running`, `waiting`: requests, None if unknown. `away`: the replica does not answer."""

    name: str
    running: float | None = None
    waiting: float | None = None
    kv_tokens: float = math.inf
    away: bool = False

    @classmethod
    def parse(cls, name: str, metadata: Mapping[str, Any], stats: Mapping[str, Any]) -> ReplicaSeen:
        return cls(
            name,
            _number(stats.get("running")),
            _number(stats.get("waiting")),
            _number(metadata.get("kv_tokens")) or math.inf,
            stats.get("away") is True,
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else None
