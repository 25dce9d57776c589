"""Reads the replicas' load from the metrics of many pods, within a fixed time."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import aiohttp

from forebay.deploy.kubernetes.deployment import IN_FLIGHT, WANTED
from forebay.errors import DeployError
from forebay.flink.metric_names import PREFIX
from forebay.gateway.peak_load import PEAK_LOAD
from forebay.untrusted_text import counted

MAX_CHARS = 16 << 20
MAX_WANTED = 10_000
MAX_LOAD = 1_000_000
MAX_PROBLEMS = 4
PARTLY_READ = "some metrics are missing, so no replica is removed"
SAMPLE = re.compile(
    r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)(?:[ \t]+\S+)?[ \t]*$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """`wanted`: replicas that the pipeline needs. `in_flight`, `gateway`: requests of pipeline and gateway.
    None if unknown."""

    wanted: int | None = None
    in_flight: float = 0.0
    gateway: float | None = None
    problems: str = ""
    pipeline: bool = True

    @property
    def requests(self) -> float:
        return self.in_flight + (self.gateway or 0.0)

    def replicas(self, requests_per_replica: int) -> float:
        return (self.wanted or 0) + (self.gateway or 0.0) / requests_per_replica

    def __str__(self) -> str:
        reasons = [f"the pipeline needs {self.wanted}"] if self.pipeline else []
        if self.gateway is not None:
            reasons.append(f"the gateway has {counted(round(self.gateway), 'request')}")
        return " and ".join(reasons)


def values(text: str, metric: str) -> tuple[float, ...]:
    found = []
    for match in SAMPLE.finditer(text):
        if match[1] != metric:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        if math.isfinite(value):
            found.append(value)
    return tuple(found)


def shown(url: str) -> str:
    """Without user, query and fragment, which may hold a password."""
    scheme = "https://" if url.startswith("https://") else "http://" if url.startswith("http://") else ""
    # An unencoded password may contain any character that ends a host.
    return scheme + re.split(r"[?#]", url.removeprefix(scheme).rpartition("@")[2])[0]


def observed_load(
    pipeline: Iterable[str] | None, gateway: Iterable[str] | None = None, problems: Sequence[str] = ()
) -> ObservedLoad:
    """None: there is no such pipeline or gateway.

    Every subtask decides for all, so the largest number counts. Gateway pods report their own requests: they
    add up.
    """
    texts, unknown = list(pipeline or ()), list(problems)
    wanted = [value for text in texts for value in values(text, WANTED) if 0 <= value <= MAX_WANTED]
    in_flight = sum(max(0.0, value) for text in texts for value in values(text, IN_FLIGHT))
    if pipeline is not None and not wanted:
        unknown.append("no pod of the pipeline reports how many replicas it needs")
    loads = [value for text in gateway or () for value in values(text, PEAK_LOAD) if 0 <= value <= MAX_LOAD]
    if gateway is not None and not loads:
        unknown.append("no pod of the gateway reports its load")
    more = len(unknown) - MAX_PROBLEMS
    return ObservedLoad(
        math.ceil(max(wanted, default=0.0)) if wanted or loads else None,
        in_flight,
        sum(loads) if loads else None,
        "; ".join(unknown[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else ""),
        bool(wanted),
    )


POD_S = 2.0
ROUND_S = 3.0
AT_ONCE = 32
MAX_LINE = 64 << 10
OWN = (PREFIX.encode(), PEAK_LOAD.encode())
Readings = Sequence["str | DeployError"]
Scrape = Callable[[Sequence[str]], Readings]
"""Reads URLs, in order. Raises nothing for failures."""


def scrape(urls: Sequence[str]) -> Readings:
    """In parallel, without proxies. Blocks at most `ROUND_S`, and `POD_S` for each URL."""
    return asyncio.run(_scrape(urls))


async def _scrape(urls: Sequence[str]) -> Readings:
    async with open_session() as http:
        return await read_all(urls, lambda url: read_metrics(http, url))


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ROUND_S), auto_decompress=False)


async def read_all(
    urls: Sequence[str],
    read: Callable[[str], Awaitable[str]],
    *,
    pod_s: float = POD_S,
    round_s: float = ROUND_S,
    at_once: int = AT_ONCE,
) -> Readings:
    """Calls over `pod_s`, or not started within `round_s`, become a `DeployError`."""
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


async def read_metrics(http: aiohttp.ClientSession, url: str) -> str:
    """Without redirects. Raises `DeployError` without the URL's password."""
    where = shown(url)
    # Uncompressed: a compressed answer could unpack to any size.
    headers = {"accept-encoding": "identity"}
    try:
        async with http.get(url, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                raise DeployError(f"{where}: cannot read metrics: expected status 200, found {answer.status}")
            encoding = answer.headers.get("content-encoding", "identity")
            if encoding.strip().lower() != "identity":
                raise DeployError(
                    f"{where}: cannot read metrics: expected no Content-Encoding, found {encoding[:40]!r}"
                )
            own: list[bytes] = []
            size, rest = 0, b""
            async for chunk in answer.content.iter_any():
                size += len(chunk)
                if size > MAX_CHARS:
                    raise DeployError(f"{where}: more than {MAX_CHARS >> 20} MiB of metrics")
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE:
                    if rest.startswith(OWN):
                        raise DeployError(
                            f"{where}: a line of more than {MAX_LINE >> 10} KiB among the metrics"
                        )
                    rest = rest[:MAX_LINE]
                own += [line for line in lines if line.startswith(OWN)]
            own += [rest] if rest.startswith(OWN) else []
    except (aiohttp.ClientError, asyncio.TimeoutError, TimeoutError, OSError, ValueError) as error:
        # Other parts of the error may quote the URL.
        detail = getattr(error, "strerror", None) or type(error).__name__
        raise DeployError(f"{where}: cannot read metrics: {detail}") from None
    return b"\n".join(own).decode("utf-8", "replace")
