"""Samples an engine's `/metrics` during a load; reads vLLM's names."""

from __future__ import annotations

import http.client
import re
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from forebay.engine.client import replica_url, request_headers
from forebay.engine.load import parse_metrics

METRICS_PATH, VERSION_PATH = "/metrics", "/version"
MAX_VERSION_BYTES = 4096
VERSION = re.compile(r"[\w.+-]{1,64}")
TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20

Fetch = Callable[[], str]
"""Returns the text of `/metrics`. Raises `OSError` if there is none."""


class EngineSignals:
    """A `Source` of the engine's figures.

    - `running`, `waiting`: requests; `kv_cache_usage`: share of the KV cache in use, 0 to 1
    - `prompt_tokens`, `generation_tokens`, `preemptions`, `prefix_cache_queries`, `prefix_cache_hits` (the
      last two in tokens): totals since the first reading
    - `prefix_cache_hit_share`: share of prompt tokens found in the prefix cache since the previous reading;
      absent if there were no prompts

    Values that the engine does not report are absent.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    @classmethod
    def at(cls, url: str, *, api_key: str | None = None) -> EngineSignals:
        """The source for the engine at `url`. Raises `SettingError` if that is not an engine's URL."""
        fetch = _fetcher(url, METRICS_PATH, api_key)
        return cls(lambda: fetch(MAX_BYTES).decode("utf-8", "replace"))

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


def fetch_version(url: str, *, api_key: str | None = None) -> str | None:
    """The version that the engine at `url` reports (vLLM's `/version`), or None; blocks for a few seconds at
    most.

    Raises `SettingError` if `url` is not an engine's.
    """
    fetch = _fetcher(url, VERSION_PATH, api_key)
    try:
        document: Any = orjson.loads(fetch(MAX_VERSION_BYTES))
        version = document["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and VERSION.fullmatch(version) else None


def _fetcher(url: str, path: str, api_key: str | None) -> Callable[[int], bytes]:
    request = urllib.request.Request(replica_url(url) + path, headers=request_headers(api_key))
    # No redirects and no proxy: neither may get the key.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def fetch(most: int) -> bytes:
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                data: bytes = answer.read(most)
                return data
        except http.client.HTTPException as error:
            raise OSError("the engine's answer is not HTTP") from error

    return fetch


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None
