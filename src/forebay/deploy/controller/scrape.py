"""Reads the metrics of many pods in parallel, within a fixed time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from forebay.deploy.controller.exposition import MAX_CHARS
from forebay.deploy.kubernetes.metrics import PREFIX
from forebay.errors import DeployError
from forebay.gateway.peak_load import PEAK_LOAD

if TYPE_CHECKING:
    import httpx2

POD_S = 2.0
ROUND_S = 3.0
AT_ONCE = 32
MAX_LINE = 64 << 10
OWN = (PREFIX.encode(), PEAK_LOAD.encode())
Readings = Sequence["str | DeployError"]
"""For each URL its text, or why it is missing."""
Scrape = Callable[[Sequence[str]], Readings]
"""Reads some URLs, in order. Raises nothing for failures."""


def scrape(urls: Sequence[str]) -> Readings:
    """Forebay's metrics at each of `urls`, in parallel, without proxies. Blocks at most `ROUND_S`, and
    `POD_S` for each URL, however slowly it sends.
    """
    return asyncio.run(_scrape(urls))


async def _scrape(urls: Sequence[str]) -> Readings:
    import httpx2

    async with httpx2.AsyncClient(trust_env=False, timeout=POD_S) as http:
        return await read_all(urls, lambda url: read_metrics(http, url))


async def read_all(
    urls: Sequence[str],
    read: Callable[[str], Awaitable[str]],
    *,
    pod_s: float = POD_S,
    round_s: float = ROUND_S,
    at_once: int = AT_ONCE,
) -> Readings:
    """Call `read` for each URL, `at_once` in parallel. Calls over `pod_s`, or not started within `round_s`,
    become a
    `DeployError`.
    """
    room = asyncio.Semaphore(at_once)

    async def one(url: str) -> str | DeployError:
        async with room:
            try:
                return await asyncio.wait_for(read(url), pod_s)
            except asyncio.TimeoutError:
                return DeployError(f"{url}: reading metrics timed out after {pod_s:g} s")
            except DeployError as error:
                return error

    tasks = [asyncio.create_task(one(url)) for url in urls]
    if tasks:
        await asyncio.wait(tasks, timeout=round_s)
    late = {task for task in tasks if task.cancel()}
    await asyncio.gather(*late, return_exceptions=True)
    return [
        DeployError(f"{url} was not read within the {round_s:g} s for all") if task in late else task.result()
        for url, task in zip(urls, tasks, strict=True)
    ]


async def read_metrics(http: httpx2.AsyncClient, url: str) -> str:
    """Forebay's own metrics at `url`; the others are dropped. Raises `DeployError`."""
    import httpx2

    try:
        # Uncompressed: a compressed answer could unpack to any size.
        async with http.stream("GET", url, headers={"accept-encoding": "identity"}) as answer:
            answer.raise_for_status()
            own: list[bytes] = []
            size, rest = 0, b""
            async for chunk in answer.aiter_raw():
                size += len(chunk)
                if size > MAX_CHARS:
                    raise DeployError(f"{url}: more than {MAX_CHARS >> 20} MiB of metrics")
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE:
                    raise DeployError(f"{url}: a line of more than {MAX_LINE >> 10} KiB among the metrics")
                own += [line for line in lines if line.startswith(OWN)]
            own += [rest] if rest.startswith(OWN) else []
    except httpx2.HTTPError as error:
        raise DeployError(f"{url}: cannot read metrics: {str(error) or type(error).__name__}") from None
    return b"\n".join(own).decode("utf-8", "replace")
