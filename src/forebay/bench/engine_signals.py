"""What an engine says of itself while a load runs, from the `/metrics` of vLLM and of those that took its
names."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Callable, Mapping

from forebay.engine.client import replica_url, request_headers
from forebay.engine.load import parse_metrics

METRICS_PATH = "/metrics"
TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20

Fetch = Callable[[], str]
"""The text of `/metrics`. Raises `OSError` where there is none."""


class EngineSignals:
    """A `Source` of the engine's figures:

    - `running`, `waiting`: requests; `kv_cache_usage`: share of the KV cache in use, 0 to 1
    - `prompt_tokens`, `generation_tokens`, `preemptions`, `prefix_cache_queries`, `prefix_cache_hits` (the
      last two in tokens): how many since the first reading
    - `prefix_cache_hit_share`: of the prompts' tokens since the reading before, how many were in the prefix
      cache; not told where there were none

    What the engine does not say is left out.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    @classmethod
    def at(cls, url: str, *, api_key: str | None = None) -> EngineSignals:
        """Those of the engine at `url`. Raises `SettingError` for what is no URL of one."""
        request = urllib.request.Request(replica_url(url) + METRICS_PATH, headers=request_headers(api_key))
        # Neither a redirect nor a proxy gets the key.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

        def fetch() -> str:
            try:
                with opener.open(request, timeout=TIMEOUT_S) as answer:
                    data: bytes = answer.read(MAX_BYTES)
            except http.client.HTTPException as error:
                raise OSError("the engine's answer is not HTTP") from error
            return data.decode("utf-8", "replace")

        return cls(fetch)

    def __call__(self) -> Mapping[str, float]:
        load, counters = parse_metrics(self._fetch(), observed_s=0.0)
        gauges = {"running": load.running, "waiting": load.waiting, "kv_cache_usage": load.kv_cache_usage}
        totals = {
            "prompt_tokens": counters.prompt_tokens,
            "generation_tokens": counters.generation_tokens,
            "preemptions": counters.preemptions,
            "prefix_cache_queries": counters.prefix_cache_queries,
            "prefix_cache_hits": counters.prefix_cache_hits,
        }
        found = {name: value for name, value in gauges.items() if value is not None}
        for name, total in totals.items():
            if total is not None:
                found[name] = total - self._first.setdefault(name, total)
        share = self._hit_share(found)
        if share is not None:
            found["prefix_cache_hit_share"] = share
        self._last = found
        return found

    def _hit_share(self, now: Mapping[str, float]) -> float | None:
        queries, hits = (
            now[name] - self._last[name] if name in now and name in self._last else 0.0
            for name in ("prefix_cache_queries", "prefix_cache_hits")
        )
        return hits / queries if queries > 0 and hits >= 0 else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None
