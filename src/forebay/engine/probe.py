"""Questions to a replica besides completions: is it healthy, what does it serve, how loaded is it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from forebay.clock import Clock, SystemClock
from forebay.engine.client import (
    MAX_ERROR_BYTES,
    open_session,
    read_bounded,
    read_start,
    replica_url,
    request_headers,
    request_timeout,
    transport_error,
)
from forebay.engine.failures import Quoter, error_from_status
from forebay.engine.load import ReplicaCounters, parse_cache_tokens, parse_metrics
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    ProtocolViolation,
    Unauthorized,
)
from forebay.records import ReplicaLoad

MAX_MODELS_BYTES = 1 << 20
MAX_METRICS_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a replica serves. `max_model_len`: its context in tokens, where the replica says so."""

    name: str
    max_model_len: int | None = None


async def list_models(
    url: str, *, api_key: str | None = None, timeout_s: float = 10.0
) -> tuple[ServedModel, ...]:
    """What the replica at `url` serves (`/v1/models`). Raises the `EngineError` of the cause."""
    body = await _get(url, "/v1/models", api_key, timeout_s, MAX_MODELS_BYTES)
    try:
        document: Any = orjson.loads(body)
        return tuple(_model(entry) for entry in document["data"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = Quoter(api_key)(body.decode("utf-8", "replace"))
        raise ProtocolViolation(f"{url}/v1/models answered no list of models: {said}") from None


async def fetch_metrics(
    url: str, *, api_key: str | None = None, timeout_s: float = 10.0, clock: Clock | None = None
) -> tuple[ReplicaLoad, ReplicaCounters]:
    """Load and counters of the replica at `url` (`/metrics`). Raises the `EngineError` of the cause."""
    body = await _get(url, "/metrics", api_key, timeout_s, MAX_METRICS_BYTES)
    observed_s = (clock or SystemClock()).monotonic_s()
    return parse_metrics(body.decode("utf-8", "replace"), observed_s=observed_s)


async def is_healthy(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether `/health` answers 200 in time."""
    try:
        await _get(url, "/health", None, timeout_s, MAX_MODELS_BYTES)
    except EngineError:
        return False
    return True


async def check_health(url: str, *, timeout_s: float = 2.0) -> None:
    """Raises the `EngineError` of the cause where `/health` does not answer in time, or with a failure.

    A server that answers but knows no such path, or wants a key for it, is well.
    """
    try:
        await _get(url, "/health", None, timeout_s, MAX_MODELS_BYTES)
    except (BadRequest, ModelNotFound, Unauthorized):
        return


async def fetch_cache_tokens(
    url: str, *, api_key: str | None = None, timeout_s: float = 10.0
) -> float | None:
    """How many tokens the replica's KV cache holds, from `/metrics`; None where it does not say."""
    body = await _get(url, "/metrics", api_key, timeout_s, MAX_METRICS_BYTES)
    return parse_cache_tokens(body.decode("utf-8", "replace"))


async def _get(url: str, path: str, api_key: str | None, timeout_s: float, limit: int) -> bytes:
    replica = replica_url(url)
    quote = Quoter(api_key)
    async with open_session(request_headers(api_key)) as session:
        try:
            timeout = request_timeout(timeout_s)
            async with session.get(URL(replica + path), timeout=timeout, allow_redirects=False) as response:
                if response.status == 200:
                    return await read_bounded(response, limit, replica=replica)
                body = await read_start(response, MAX_ERROR_BYTES)
                failure = error_from_status(response.status, body, replica=replica, model="", quote=quote)
        except asyncio.TimeoutError:
            failure = AttemptTimeout(f"{replica}{path} did not answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = transport_error(error, replica=replica, quote=quote)
    raise failure


def _model(entry: Any) -> ServedModel:
    name, length = entry["id"], entry.get("max_model_len")
    if not isinstance(name, str):
        raise TypeError("a model's id is not a string")
    return ServedModel(name, length if type(length) is int and length > 0 else None)
