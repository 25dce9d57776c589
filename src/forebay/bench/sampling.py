"""Samples an engine's `/metrics` and other figures during a load, in a thread."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import orjson

from forebay.bench.records import EngineSample
from forebay.engine.client import replica_url, request_headers
from forebay.engine.load import parse_metrics
from forebay.errors import ForebayError

METRICS_PATH, VERSION_PATH = "/metrics", "/version"
MAX_VERSION_BYTES = 4096
VERSION = re.compile(r"[\w.+-]{1,64}")
TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20

Source = Callable[[], Mapping[str, float]]
"""Returns figures by name. May block; called on a thread."""
Fetch = Callable[[], str]
"""Returns the text of `/metrics`. Raises `OSError` if it cannot be read."""


class EngineSignals:
    """A `Source` of gauges, totals since the first reading, and `prefix_cache_hit_share` since the previous
    one."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    @classmethod
    def at(cls, url: str, *, api_key: str | None = None) -> EngineSignals:
        """Raises `SettingError` if `url` is not an engine's."""
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


def engine_signals(urls: Sequence[str], *, api_key: str | None = None) -> list[Source]:
    """A source for each engine; with several, names begin with `engine0_`. Raises as `EngineSignals.at`."""
    each: list[Source] = [EngineSignals.at(url, api_key=api_key) for url in urls]
    if len(each) == 1:
        return each
    return [_named(f"engine{number}_", source) for number, source in enumerate(each)]


def _named(prefix: str, source: Source) -> Source:
    return lambda: {prefix + name: value for name, value in source().items()}


def fetch_version(url: str, *, api_key: str | None = None) -> str | None:
    """vLLM's `/version`, or None; blocks for seconds."""
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


EVERY_S = 1.0
END_S = 30.0


class Sampler:
    """Reads all sources every `every_s`, at least once before and after the block's work.

    Sources that raise `OSError` or a `ForebayError` are skipped at that moment.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        every_s: float = EVERY_S,
        now_s: Callable[[], float] = time.time,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._sources = sources
        self._every_s = every_s
        self._now_s = now_s
        self._wait = wait
        self._ended = threading.Event()
        self._seen: list[tuple[float, Mapping[str, float]]] = []
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)

    def samples(self, began_at: str) -> tuple[EngineSample, ...]:
        """The samples, in seconds after this wall-clock moment."""
        began_s = datetime.fromisoformat(began_at).timestamp()
        return tuple(EngineSample(at_s - began_s, values) for at_s, values in self._seen if values)

    def __enter__(self) -> Sampler:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._wait(self._ended, self._every_s):
            self._read()
        self._read()

    def _read(self) -> None:
        found: dict[str, float] = {}
        at_s = self._now_s()
        for source in self._sources:
            try:
                found.update(source())
            except (OSError, ForebayError):
                continue
        self._seen.append((at_s, found))
