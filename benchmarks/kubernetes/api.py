"""Calls of the API server, as a kubelet makes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson

from forebay.errors import DeployError

if TYPE_CHECKING:
    import httpx2

PAUSE_S = 0.2
TIMEOUT_S = 5.0


class Api:
    """Retries calls while the server is down. Raises `DeployError` if it refuses one."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str) -> dict[str, Any]:
        return await self._ask("GET", path)

    async def create(self, path: str, body: Any) -> dict[str, Any]:
        return await self._ask("POST", path, body)

    async def patch(self, path: str, body: Any) -> bool:
        """Merge `body` into an object; False if it does not exist."""
        found = await self._ask("PATCH", path, body, form="application/merge-patch+json", gone_ok=True)
        return bool(found)

    async def delete(self, path: str, *, grace_s: int | None = None) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        more = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        await self._ask("DELETE", path, {**body, **more}, gone_ok=True)

    async def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        form: str = "application/json",
        gone_ok: bool = False,
    ) -> dict[str, Any]:
        import httpx2

        content = None if body is None else orjson.dumps(body)
        while True:
            try:
                answer = await self.http.request(
                    method, path, content=content, headers={"content-type": form}, timeout=TIMEOUT_S
                )
            except httpx2.TransportError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code in (429, 500, 502, 503, 504):
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.status_code == 404 and gone_ok:
                return {}
            if not answer.is_success:
                raise DeployError(f"{method} {path}: {answer.status_code}: {answer.text[:500]}")
            return dict(orjson.loads(answer.content))
