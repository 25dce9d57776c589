"""The REST interface of Ray Serve, which is part of a Ray cluster's dashboard."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from forebay.clients.ray.instance import ServeInstance, plain
from forebay.errors import DeployError, SettingError
from forebay.settings import ray_token

APPLICATIONS = "/api/serve/applications/"
TIMEOUT_S = 30.0
MAX_BYTES = 32 << 20
DASHBOARD = "Serve's REST interface is part of Ray's dashboard: ray start --head --include-dashboard=true"
TOKEN = "put the cluster's token into RAY_AUTH_TOKEN, or into ~/.ray/auth_token"


class TokenRefused(DeployError):
    """The cluster requires a token, or another one: retrying is useless."""


class ServeRest:
    """The Ray cluster whose dashboard is at `address`: an asynchronous context manager. Calls take at most
    `timeout_s`, raise `DeployError` with what to do, and send Ray's token, if there is one
    (`forebay.settings.ray_token`)."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServeRest:
        headers = {"User-Agent": "forebay"}
        try:
            token = ray_token()
        except SettingError as error:
            raise DeployError(f"Ray's token: {error}") from None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise DeployError("Ray's token: expected printable text in one line, found something else")
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._session = aiohttp.ClientSession(timeout=self._timeout, headers=headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def instance(self) -> ServeInstance:
        status, body = await self._ask("GET", APPLICATIONS)
        if status != 200:
            raise self._refused(status, body)
        try:
            return ServeInstance.parse(orjson.loads(body))
        except orjson.JSONDecodeError:
            raise DeployError(f"{self.address}: expected JSON from Ray Serve, found something else") from None

    async def submit(self, config: Mapping[str, Any]) -> None:
        """Run these applications, and none that were submitted before. Returns when Serve has accepted them,
        before they have started."""
        status, body = await self._ask("PUT", APPLICATIONS, config)
        if status != 200:
            raise self._refused(status, body)

    async def scale(self, application: str, deployment: str, replicas: int) -> None:
        """Set the number of replicas of a deployment. Returns when Serve has recorded it."""
        path = f"/api/v1/applications/{quote(application, '')}/deployments/{quote(deployment, '')}/scale"
        status, body = await self._ask("POST", path, {"target_num_replicas": replicas})
        if status == 404:
            raise DeployError(f"{application}: {self.address} has no such application with a {deployment!r}")
        if status == 412:
            raise DeployError(f"{application}: it cannot be scaled: {plain(body.decode('utf-8', 'replace'))}")
        if status != 200:
            raise self._refused(status, body)

    async def _ask(self, method: str, path: str, content: Any = None) -> tuple[int, bytes]:
        if self._session is None:
            raise RuntimeError("ServeRest is used outside of `async with`")
        data = None if content is None else orjson.dumps(content)
        headers = {"Content-Type": "application/json"} if data is not None else {}
        try:
            async with self._session.request(
                method, self.address + path, data=data, headers=headers, allow_redirects=False
            ) as answer:
                found = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    found += chunk
                    if len(found) > MAX_BYTES:
                        raise DeployError(f"{self.address}: an answer of more than {MAX_BYTES >> 20} MiB")
                return answer.status, bytes(found)
        except (asyncio.TimeoutError, TimeoutError):
            raise DeployError(
                f"{self.address}: the Ray cluster does not answer within {self._timeout.total:g} s; "
                f"check that its head runs"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise DeployError(
                f"{self.address}: there is no Ray cluster: {_reason(error)}; check that its head runs, and "
                f"that its dashboard has this address. {DASHBOARD}"
            ) from None

    def _refused(self, status: int, body: bytes) -> DeployError:
        said = plain(body[-8192:].decode("utf-8", "replace"))
        if status == 401:
            return TokenRefused(f"{self.address}: the cluster requires a token: {said}; {TOKEN}")
        if status == 403:
            return TokenRefused(f"{self.address}: the cluster rejects the token: {said}; {TOKEN}")
        if status == 404:
            return DeployError(f"{self.address}: Ray Serve is not running there (404). {DASHBOARD}")
        if status == 503:
            return DeployError(f"{self.address}: Ray Serve is not available for now: {said}; try again")
        return DeployError(f"{self.address}: Ray Serve rejects it ({status}): {said}")


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    # Instead of a text that repeats the address.
    known = os.strerror(number) if number is not None and number > 0 else plain(error)
    return known or type(error).__name__
