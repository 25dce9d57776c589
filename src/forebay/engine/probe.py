"""Questions to a replica besides completions: is it healthy, what does it serve, how loaded is it."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
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
from forebay.errors import AttemptTimeout, BadRequest, EngineError, ModelNotFound, ProtocolViolation
from forebay.records import ReplicaLoad

MAX_MODELS_BYTES = 1 << 20
MAX_METRICS_BYTES = 8 << 20
NO_LIST = (BadRequest, ModelNotFound, ProtocolViolation)
"""How a server answers that has no list of its models: 404, 405, or something else."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a replica serves. `max_model_len`: its context in tokens, where the replica says so."""

    name: str
    max_model_len: int | None = None


async def list_models(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    session: aiohttp.ClientSession | None = None,
) -> tuple[ServedModel, ...]:
    """What the replica at `url` serves (`/v1/models`). Raises the `EngineError` of the cause.

    All questions go over `session`, where one is given: it has the API key in its headers and stays open.
    """
    body = await _get(url, "/v1/models", api_key, timeout_s, MAX_MODELS_BYTES, session=session)
    try:
        document: Any = orjson.loads(body)
        return tuple(_model(entry) for entry in document["data"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = Quoter(api_key)(body.decode("utf-8", "replace"))
        raise ProtocolViolation(f"{url}/v1/models answered no list of models: {said}") from None


async def fetch_metrics(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    clock: Clock | None = None,
    session: aiohttp.ClientSession | None = None,
) -> tuple[ReplicaLoad, ReplicaCounters]:
    """Load and counters of the replica at `url` (`/metrics`). Raises the `EngineError` of the cause."""
    body = await _get(url, "/metrics", api_key, timeout_s, MAX_METRICS_BYTES, session=session)
    observed_s = (clock or SystemClock()).monotonic_s()
    return parse_metrics(body.decode("utf-8", "replace"), observed_s=observed_s)


async def is_healthy(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether `/health` answers 200 in time."""
    try:
        return await check_health(url, timeout_s=timeout_s)
    except EngineError:
        return False


async def check_health(
    url: str, *, timeout_s: float = 2.0, session: aiohttp.ClientSession | None = None
) -> bool:
    """Raises the `EngineError` of the cause where `/health` does not answer in time, or with a failure.

    A server that answers but knows no such path, or wants a key for it, is well: then it gives False.
    """
    status, body = await _ask(url, "/health", None, timeout_s, MAX_MODELS_BYTES, kept=session)
    if status >= 500:
        raise error_from_status(status, body, replica=replica_url(url), model="", quote=Quoter())
    return status == 200


async def fetch_cache_tokens(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    session: aiohttp.ClientSession | None = None,
) -> float | None:
    """How many tokens the replica's KV cache holds, from `/metrics`; None where it does not say."""
    body = await _get(url, "/metrics", api_key, timeout_s, MAX_METRICS_BYTES, session=session)
    return parse_cache_tokens(body.decode("utf-8", "replace"))


async def _get(
    url: str,
    path: str,
    api_key: str | None,
    timeout_s: float,
    limit: int,
    *,
    session: aiohttp.ClientSession | None,
) -> bytes:
    status, body = await _ask(url, path, api_key, timeout_s, limit, kept=session)
    if status != 200:
        replica = replica_url(url)
        raise error_from_status(status, body, replica=replica, model="", quote=Quoter(api_key))
    return body


async def _ask(
    url: str,
    path: str,
    api_key: str | None,
    timeout_s: float,
    limit: int,
    *,
    kept: aiohttp.ClientSession | None,
) -> tuple[int, bytes]:
    """Status and body, of which only the beginning is read where the status is not 200."""
    replica = replica_url(url)
    async with nullcontext(kept) if kept else open_session(request_headers(api_key)) as session:
        try:
            timeout = request_timeout(timeout_s)
            async with session.get(URL(replica + path), timeout=timeout, allow_redirects=False) as response:
                if response.status == 200:
                    return 200, await read_bounded(response, limit, replica=replica)
                return response.status, await read_start(response, MAX_ERROR_BYTES)
        except asyncio.TimeoutError:
            failure: EngineError = AttemptTimeout(f"{replica}{path} did not answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = transport_error(error, replica=replica, quote=Quoter(api_key))
    raise failure


def _model(entry: Any) -> ServedModel:
    name, length = entry["id"], entry.get("max_model_len")
    if not isinstance(name, str):
        raise TypeError("a model's id is not a string")
    return ServedModel(name, length if type(length) is int and length > 0 else None)
