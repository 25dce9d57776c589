"""Counts and logs requests that have ended."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache
from typing import Any

from forebay.clock import Clock
from forebay.gateway.access_log import AccessLog
from forebay.gateway.exchange import Exchange
from forebay.gateway.keys import UNNAMED
from forebay.gateway.telemetry import GatewayMetrics


class Accounts:
    def __init__(
        self, metrics: GatewayMetrics, log: AccessLog | None, clock: Clock, *, names_keys: bool
    ) -> None:
        self._metrics = metrics
        self._log = log
        self._clock = clock
        self._names_keys = names_keys
        # Looking up labels is slower than counting. Keys and models bound the cache.
        self._tokens = cache(metrics.tokens.labels)

    def ended(self, exchange: Exchange, duration_s: float) -> None:
        self._count(exchange, duration_s)
        if self._log is not None:
            self._log.write(self._line(exchange, duration_s))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _count(self, exchange: Exchange, duration_s: float) -> None:
        metrics, route, call = self._metrics, exchange.route, exchange.call
        key = exchange.key if self._names_keys or exchange.key in UNNAMED else "known"
        metrics.requests.labels(route, key, exchange.outcome).inc()
        metrics.duration_s.labels(route).observe(duration_s)
        if call is None or not call.begun:
            return
        metrics.first_byte_s.labels(route).observe(call.begun_s - exchange.began_s)
        if call.status >= 400:
            return
        usage, model = call.spent, call.asked.model
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        ):
            if tokens:
                self._tokens(key, model, kind).inc(tokens)
        if call.handover == "transferred":
            metrics.kv_transfers.inc()
        elif call.handover is not None:
            metrics.kv_fallbacks.labels(call.handover).inc()

    def _line(self, exchange: Exchange, duration_s: float) -> dict[str, Any]:
        call = exchange.call
        began_ms = self._clock.wall_ms() - round(duration_s * 1000)
        line = {
            "time": datetime.fromtimestamp(began_ms / 1000, timezone.utc).isoformat(timespec="milliseconds"),
            "id": exchange.id,
            "key": exchange.key,
            "method": exchange.method,
            "route": exchange.route,
            "status": int(exchange.outcome) if exchange.outcome.isdigit() else exchange.status,
            "outcome": exchange.outcome,
            "error": exchange.error,
            "model": exchange.model,
            "duration_s": round(duration_s, 6),
        }
        if call is None:
            return line
        usage = call.spent
        return line | {
            "served_model": call.asked.model,
            "replica": call.replica or None,
            "engine_id": exchange.engine_id,
            "stream": call.asked.stream,
            "first_byte_s": round(call.begun_s - exchange.began_s, 6) if call.begun else None,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "tokens_counted": call.counted,
        }
