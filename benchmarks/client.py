"""Measures the load client: whether it keeps its schedule, and the time that it adds."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import aiohttp
import orjson
import psutil

from forebay.bench.client import measure
from forebay.bench.load.schedules import Poisson, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.metrics import RequestFigures, request_figures
from forebay.bench.statistics import percentile
from forebay.bench.targets.openai import OpenAiTarget
from forebay.bench.verdict import judge
from forebay.clients.http.readers import AnswerHead, AwaitedReader
from forebay.clients.http.server import HttpServer
from forebay.engine.client import HttpEngine
from forebay.engine.launch.dtype import read_processor
from forebay.engine.protocol import CHAT_PATH
from forebay.errors import SetupError
from forebay.records import Message, Request
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.stream_server import StreamServerProcess

MAX_DELAY_S = 0.005
"""Schedule delay at the 99th percentile: the client's promise at 1,000 requests per second."""
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Streams of `tokens` tokens: the first after `first_s`, then one each `gap_s`."""

    rates: tuple[float, ...] = (250.0, 500.0, 1000.0)
    seconds: float = 10.0
    tokens: int = 20
    first_s: float = 0.05
    gap_s: float = 0.01
    seed: int = 0


def measure_client(options: ClientOptions, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """A document with one run per rate; blocks."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SetupError("the client and its server need a core each: this process may use only one")
    runs = []
    server = StreamServerProcess(options.tokens, options.first_s, options.gap_s, cores=cores[1:2])
    with server, on_core(cores[0]):
        for rate in options.rates:
            note(f"{rate:g} requests/s: {options.seconds:.0f} s")
            runs.append(_run(options, rate, server))
    return {**asdict(options), "max_delay_ms": MAX_DELAY_S * 1000, "runs": runs}


def _run(options: ClientOptions, rate: float, server: StreamServerProcess) -> dict[str, Any]:
    workload = RandomTokens(Exactly(PROMPT_TOKENS), Exactly(options.tokens))
    load = make_load(Poisson(rate), workload, round(rate * options.seconds), seed=options.seed)
    client, before = psutil.Process(), _processor_s(psutil.Process(), psutil.Process(server.pid))
    run = measure(OpenAiTarget(server.url), load)
    after = _processor_s(client, psutil.Process(server.pid))
    verdict = judge(run)
    figures = [found for record in run.records if (found := request_figures(record)) is not None]
    whole_s = options.first_s + (options.tokens - 1) * options.gap_s
    reasons = list(verdict.reasons)
    delay_s = verdict.schedule_delay_p99_s
    if delay_s is not None and delay_s > MAX_DELAY_S:
        reasons.append(f"schedule delay p99 {delay_s * 1000:.2f} ms, more than {MAX_DELAY_S * 1000:g} ms")
    return {
        "rate_per_s": rate,
        "requests": len(run.records),
        "answered": len(figures),
        "verdict": "INVALID" if reasons else "VALID",
        "reasons": reasons,
        "schedule_delay_ms": _quantiles(figures, lambda one: one.schedule_delay_s),
        "added_ttft_ms": _quantiles(figures, lambda one: (one.service_ttft_s or 0.0) - options.first_s),
        "added_e2el_ms": _quantiles(figures, lambda one: one.service_e2el_s - whole_s),
        "tpot_ms": _quantiles(figures, lambda one: one.tpot_s or 0.0),
        "client_cores": round((after[0] - before[0]) / run.duration_s, 3),
        "server_cores": round((after[1] - before[1]) / run.duration_s, 3),
    }


def _quantiles(figures: list[RequestFigures], of: Callable[[RequestFigures], float]) -> dict[str, float]:
    values = sorted(map(of, figures))
    if not values:
        return {}
    found = {"p50": percentile(values, 50), "p99": percentile(values, 99), "max": values[-1]}
    return {name: round(value * 1000, 3) for name, value in found.items()}


def _processor_s(*processes: psutil.Process) -> list[float]:
    times = [process.cpu_times() for process in processes]
    return [one.user + one.system for one in times]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this thread, and threads that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


CALL_S = 0.05
WARM_S = 1.0
AT_ONCE = 64
"""Calls in flight if the rate is infinite."""
JSON = {"Content-Type": "application/json"}

Call = Callable[[], Awaitable[object]]
Opened = AbstractAsyncContextManager[Call]


@dataclass(frozen=True, slots=True)
class HttpCallsOptions:
    """`loads`: calls per second; infinite: as many as the client makes, `AT_ONCE` in flight."""

    rounds: int = 5
    seconds: float = 5.0
    loads: tuple[float, ...] = (100.0, math.inf)
    chunks: int = 4
    clients: tuple[str, ...] = ()


def body() -> bytes:
    message = {"role": "user", "content": "hello"}
    return orjson.dumps({"model": "fake", "messages": [message], "stream": True})


@asynccontextmanager
async def with_aiohttp(url: str) -> AsyncIterator[Call]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        data = body()

        async def call() -> None:
            async with session.post(url + CHAT_PATH, data=data, headers=JSON) as response:
                async for _ in response.content.iter_any():
                    pass

        yield call


class _Dropped(AwaitedReader):
    def head(self, head: AnswerHead) -> None: ...

    def body(self, data: bytes) -> None: ...


@asynccontextmanager
async def _server(url: str) -> AsyncIterator[HttpServer]:
    server = HttpServer(url, headers=JSON, quote=str)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def with_forebay(url: str) -> AsyncIterator[Call]:
    async with _server(url) as server:
        data = body()
        yield lambda: server.post(CHAT_PATH, data, _Dropped())


@asynccontextmanager
async def with_pulled_answers(url: str) -> AsyncIterator[Call]:
    async with _server(url) as server:
        data = body()

        async def call() -> None:
            answer = await server.open_post(CHAT_PATH, data)
            while await answer.read_any():
                pass

        yield call


@asynccontextmanager
async def with_engine(url: str) -> AsyncIterator[Call]:
    engine = HttpEngine(url)
    try:
        request = Request("r", "fake", messages=(Message("user", "hello"),))
        yield lambda: engine.complete(request, timeout_s=60.0)
    finally:
        await engine.close()


@asynccontextmanager
async def with_none(url: str) -> AsyncIterator[Call]:
    yield lambda: asyncio.sleep(CALL_S)


CLIENTS: dict[str, Callable[[str], Opened]] = {
    "aiohttp": with_aiohttp,
    "forebay": with_forebay,
    "forebay, pulled": with_pulled_answers,
    "forebay, engine": with_engine,
    "none": with_none,
}
"""`pulled`: as the gateway reads."""


async def drive(call: Call, per_s: float, seconds: float) -> int:
    """Make calls for `seconds`; returns how many were made, after the last has ended."""
    made, end_s = 0, time.monotonic() + seconds
    if math.isinf(per_s):

        async def repeat() -> None:
            nonlocal made
            while time.monotonic() < end_s:
                await call()
                made += 1

        await asyncio.gather(*(repeat() for _ in range(AT_ONCE)))
        return made
    calls = []
    begin_s = time.monotonic()
    while (due_s := begin_s + made / per_s) < end_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        calls.append(asyncio.ensure_future(call()))
        made += 1
    await asyncio.gather(*calls)
    return made


async def _ms_per_call(name: str, url: str, per_s: float, seconds: float) -> float:
    async with CLIENTS[name](url) as call:
        await drive(call, per_s, min(WARM_S, seconds))
        gc.collect()
        before_s = time.process_time()
        made = await drive(call, per_s, seconds)
        return (time.process_time() - before_s) * 1000 / made


def measure_http_calls(
    options: HttpCallsOptions, note: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """A document with the milliseconds of processor per call, by load and client; blocks."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SetupError("the client and its server need a core each: this process may use only one")
    names = options.clients or tuple(CLIENTS)
    found: dict[float, dict[str, list[float]]] = {
        load: {name: [] for name in names} for load in options.loads
    }
    with ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S), chunks=options.chunks)) as replica:
        assert replica.pid is not None
        os.sched_setaffinity(replica.pid, cores[1:2])
        with on_core(cores[0]):
            for number in range(options.rounds):
                note(f"round {number + 1} of {options.rounds}")
                for load, by_name in found.items():
                    for name, figures in by_name.items():
                        figures.append(asyncio.run(_ms_per_call(name, replica.url, load, options.seconds)))
    loads = [
        {
            "per_s": None if math.isinf(load) else load,
            "ms_per_call": {name: [round(ms, 4) for ms in each] for name, each in by_name.items()},
            "median": {name: round(median(each), 4) for name, each in by_name.items()},
        }
        for load, by_name in found.items()
    ]
    return {
        **asdict(options),
        "clients": names,
        "processor": read_processor().name,
        "cores": len(cores),
        "loads": loads,
    }
