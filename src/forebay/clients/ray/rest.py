"""The REST interface of Ray Serve, part of a Ray cluster's dashboard."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
from yarl import URL

from forebay.clients.ray.instance import ServeInstance, plain
from forebay.clock import Clock
from forebay.errors import DeployError, SettingError
from forebay.settings import ray_token

if TYPE_CHECKING:
    import aiohttp  # takes a tenth of a second, and few runs use Ray

APPLICATIONS = "/api/serve/applications/"
TIMEOUT_S = 30.0
MAX_BYTES = 32 << 20
DASHBOARD = "Serve's REST interface is part of Ray's dashboard: ray start --head --include-dashboard=true"
TOKEN = "put the cluster's token into RAY_AUTH_TOKEN, or into ~/.ray/auth_token"


class TokenRefused(DeployError): ...


class ServeRest:
    """The Ray cluster whose dashboard is at `address`. Calls send Ray's token, and raise `DeployError`."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address.rstrip("/")
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ServeRest:
        import aiohttp

        headers = {"User-Agent": "forebay"}
        try:
            token = ray_token()
        except SettingError as error:
            raise DeployError(f"Ray's token: {error}") from None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise DeployError("Ray's token: expected printable text in one line, found something else")
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(timeout=timeout, headers=headers)
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
        status, body = await self._ask("PUT", APPLICATIONS, config)
        if status != 200:
            raise self._refused(status, body)

    async def scale(self, application: str, deployment: str, replicas: int) -> None:
        path = f"/api/v1/applications/{quote(application, '')}/deployments/{quote(deployment, '')}/scale"
        status, body = await self._ask("POST", path, {"target_num_replicas": replicas})
        if status == 404:
            raise DeployError(f"{application}: {self.address} has no such application with a {deployment!r}")
        if status == 412:
            raise DeployError(f"{application}: it cannot be scaled: {plain(body.decode('utf-8', 'replace'))}")
        if status != 200:
            raise self._refused(status, body)

    async def _ask(self, method: str, path: str, content: Any = None) -> tuple[int, bytes]:
        import aiohttp

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
                f"{self.address}: the Ray cluster does not answer within {self._timeout_s:g} s; "
                f"check that its head runs"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise DeployError(
                f"{self.address}: there is no Ray cluster: {_reason(error)}; check that its head runs, and "
                f"that its dashboard has this address. {DASHBOARD}"
            ) from None

    def _refused(self, status: int, body: bytes) -> DeployError:
        detail = plain(body[-8192:].decode("utf-8", "replace"))
        if status == 401:
            return TokenRefused(f"{self.address}: the cluster requires a token: {detail}; {TOKEN}")
        if status == 403:
            return TokenRefused(f"{self.address}: the cluster rejects the token: {detail}; {TOKEN}")
        if status == 404:
            return DeployError(f"{self.address}: Ray Serve is not running there (404). {DASHBOARD}")
        if status == 503:
            return DeployError(f"{self.address}: Ray Serve is not available for now: {detail}; try again")
        return DeployError(f"{self.address}: Ray Serve rejects it ({status}): {detail}")


def _reason(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    # Instead of a text that repeats the address.
    known = os.strerror(number) if number is not None and number > 0 else plain(error)
    return known or type(error).__name__


async def each_address(url: str) -> tuple[str, ...]:
    """`url` once for each address of its host, sorted; IPv4 addresses if there are any.

    Unchanged for one address, for `https` (certificates have no address), and for other texts than URLs.
    Raises `DeployError` if the name has no address.
    """
    try:
        parsed = URL(url)
    except ValueError:
        return (url,)
    if parsed.scheme != "http" or parsed.host is None:
        return (url,)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            parsed.host, parsed.port or 80, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        detail = getattr(error, "strerror", None) or type(error).__name__
        raise DeployError(f"the name {parsed.host} cannot be resolved: {detail}") from None
    # The same process may have an address of each kind.
    kind = socket.AF_INET if any(entry[0] == socket.AF_INET for entry in found) else socket.AF_INET6
    addresses = sorted({str(entry[4][0]) for entry in found if entry[0] == kind})
    if len(addresses) < 2:
        return (url,)
    return tuple(str(parsed.with_host(address)) for address in addresses)


FORGET_S = 600.0
Answer = ServeInstance | DeployError | None


@dataclass(frozen=True, slots=True)
class _Look:
    begun_s: float
    answer: Future[Answer] = field(default_factory=Future)


class CachedPoll:
    """A cluster's status, polled once for all event loops of a process. Thread-safe.

    After `limit_s`, waiters abandon a poll: its thread may be gone.
    """

    def __init__(
        self, look: Callable[[str], Awaitable[ServeInstance]], clock: Clock, *, limit_s: float
    ) -> None:
        self._look = look
        self._clock = clock
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}

    async def instance(self, address: str, fresh_s: float) -> ServeInstance:
        """A status that was polled less than `fresh_s` ago. Raises `DeployError` if that poll failed."""
        while True:
            with self._lock:
                now_s = self._clock.monotonic_s()
                found = self._looks.get(address)
                good_for_s = fresh_s if found is None or found.answer.done() else self._limit_s
                if found is None or now_s - found.begun_s >= good_for_s:
                    self._forget(now_s)
                    mine = self._looks[address] = _Look(now_s)
                    break
            answer = await self._wait(found, now_s)
            if isinstance(answer, ServeInstance):
                return answer
            if answer is not None:
                raise DeployError(str(answer))
        return await self._ask(address, mine)

    def _forget(self, now_s: float) -> None:
        for address, look in list(self._looks.items()):
            if now_s - look.begun_s > FORGET_S:
                del self._looks[address]

    async def _wait(self, look: _Look, now_s: float) -> Answer:
        if look.answer.done():
            return look.answer.result()
        left_s = max(0.0, look.begun_s + self._limit_s - now_s)
        try:
            # Shielded: others wait for the same poll.
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(look.answer)), left_s)
        except (asyncio.TimeoutError, TimeoutError):
            return None

    async def _ask(self, address: str, look: _Look) -> ServeInstance:
        answer: Answer = None
        try:
            answer = await self._look(address)
            return answer
        except DeployError as error:
            answer = error
            raise
        finally:
            if answer is None:
                with self._lock:
                    if self._looks.get(address) is look:
                        del self._looks[address]
            look.answer.set_result(answer)
