"""Measures what the gateway adds to the time to first token: the same requests with and without it,
in turn."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks.run_process import run_module
from benchmarks.workload import quantile
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed


@dataclass(frozen=True, slots=True)
class Order:
    """`count` requests numbered from `first`, at `rate_per_s`, to `urls` in turn."""

    urls: tuple[str, ...]
    first: int
    count: int
    rate_per_s: float
    prompt_chars: int
    model: str = "fake"
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, and seconds from when it was due to its first and last byte."""

    status: int
    first_ms: float
    whole_ms: float


def body_of(index: int, order: Order) -> bytes:
    text = f"Post {index}: " + "all talk of the harbour today. " * (order.prompt_chars // 31)
    return orjson.dumps(
        {
            "model": order.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": order.max_tokens,
            "stream": True,
        }
    )


async def drive(order: Order) -> list[Answer]:
    connector = aiohttp.TCPConnector(limit=0)
    seen: list[Answer] = []
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def one(index: int, due_s: float) -> None:
            url = order.urls[index % len(order.urls)] + "/v1/chat/completions"
            headers = {"Content-Type": "application/json", "X-Request-Id": f"request-{index}"}
            body = body_of(index, order)
            async with session.post(url, data=body, headers=headers) as response:
                await response.content.readany()
                first_s = time.monotonic()
                async for _ in response.content.iter_any():
                    pass
                ended_s = time.monotonic()
            seen.append(Answer(response.status, (first_s - due_s) * 1000, (ended_s - due_s) * 1000))

        tasks = []
        start_s = time.monotonic() + 0.1
        for at in range(order.count):
            due_s = start_s + at / order.rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(one(order.first + at, due_s)))
        await asyncio.gather(*tasks)
    return seen


def main() -> None:
    fields = json.load(sys.stdin)
    order = Order(**{**fields, "urls": tuple(fields["urls"])})
    gc.freeze()
    print(json.dumps([astuple(answer) for answer in asyncio.run(drive(order))]))


WAYS = ("direct", "gateway")
TARGET_MS = 5.0
ROUND_TIMEOUT_S = 300.0
END_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """`rounds` times `seconds` of requests each way, after one uncounted round each way."""

    rate_per_s: float = 100.0
    rounds: int = 5
    seconds: float = 6.0
    replicas: int = 2
    first_token_s: float = 0.05
    token_s: float = 0.005
    chunks: int = 8
    prompt_chars: int = 2000


def measure_gateway(options: GatewayOptions, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    script = ReplicaScript(delay=Fixed(options.first_token_s), token_s=options.token_s, chunks=options.chunks)
    seen: dict[str, list[Answer]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        replicas = [stack.enter_context(ReplicaProcess(script)).url for _ in range(options.replicas)]
        gateway = stack.enter_context(gateway_process(replicas))
        targets = {"direct": tuple(replicas), "gateway": (gateway,)}
        for turn in range(options.rounds + 1):
            for way in WAYS:
                note(f"round {turn} of {options.rounds}: {way}" if turn else f"warming up: {way}")
                answers = run_round(order_of(options, targets[way], turn))
                if turn:
                    seen[way] += answers
    return report(options, seen)


def order_of(options: GatewayOptions, urls: tuple[str, ...], turn: int) -> Order:
    count = max(1, round(options.rate_per_s * options.seconds))
    return Order(urls, turn * count, count, options.rate_per_s, options.prompt_chars)


def report(options: GatewayOptions, seen: dict[str, list[Answer]]) -> dict[str, Any]:
    document: dict[str, Any] = asdict(options)
    for way, answers in seen.items():
        wrong = [answer for answer in answers if answer.status != 200]
        if wrong:
            raise LaunchError(
                f"{way}: {len(wrong)} of {len(answers)} answers had a status like {wrong[0].status}"
            )
        document |= _quantiles(way, answers, "ttft_ms", "latency_ms")
    for name in ("ttft_ms", "latency_ms"):
        for q in ("p50", "p99"):
            document[f"added_{name}_{q}"] = document[f"gateway_{name}_{q}"] - document[f"direct_{name}_{q}"]
    document["requests"] = len(seen["gateway"])
    document["target_ms"] = TARGET_MS
    document["passed"] = document["added_ttft_ms_p50"] <= TARGET_MS
    return document


def _quantiles(way: str, answers: Sequence[Answer], first: str, whole: str) -> dict[str, float]:
    times = {first: sorted(one.first_ms for one in answers), whole: sorted(one.whole_ms for one in answers)}
    shares = {"p50": 0.5, "p99": 0.99}
    return {f"{way}_{n}_{q}": quantile(ms, share) for n, ms in times.items() for q, share in shares.items()}


def run_round(order: Order) -> list[Answer]:
    order_text = json.dumps(asdict(order))
    found = run_module("benchmarks.gateway", order_text, timeout_s=ROUND_TIMEOUT_S)
    return [Answer(*fields) for fields in json.loads(found)]


@contextmanager
def gateway_process(replicas: Sequence[str] = (), config: Path | None = None) -> Iterator[str]:
    """Run `forebay gateway` in front of `replicas`, or of those in the file `config`; yields its URL.

    Raises `LaunchError` if it does not start.
    """
    command = [sys.executable, "-m", "forebay", "gateway", "--port", "0"]
    for url in replicas:
        command += ["--engine", url]
    if config is not None:
        command += ["--config", str(config)]
    # A pipe that nobody reads would block the gateway once its log fills it.
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "http://" not in line:
                process.wait(END_TIMEOUT_S)
                log.seek(0)
                raise LaunchError(f"the gateway did not start: {log.read()[-2000:]}")
            yield line.split()[-1]
        finally:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


AT_ONCE_PER_S = 1e9
USERS_TARGET = 1.3


@dataclass(frozen=True, slots=True)
class UsersOptions:
    """`rounds` of `users` each way."""

    users: int = 32
    rounds: int = 3
    first_token_s: float = 0.3
    decode_s: float = 10.0
    chunks: int = 100
    kv_tokens: int = 0
    url: str | None = None
    model: str = "fake"
    max_tokens: int = 400


def measure_users(options: UsersOptions, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    seen: dict[str, list[Answer]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        url = options.url or stack.enter_context(ReplicaProcess(_users_script(options))).url
        for turn in range(options.rounds):
            for way in WAYS:
                note(f"round {turn + 1} of {options.rounds}: {way}")
                if way == "direct":
                    seen[way] += run_round(_users_order(options, url, turn))
                    continue
                with gateway_process([url]) as gateway:
                    seen[way] += run_round(_users_order(options, gateway, turn))
    return users_report(options, seen)


def users_report(options: UsersOptions, seen: dict[str, list[Answer]]) -> dict[str, Any]:
    document: dict[str, Any] = asdict(options)
    for way, answers in seen.items():
        good = [answer for answer in answers if answer.status == 200]
        document[f"{way}_answers"], document[f"{way}_refused"] = len(good), len(answers) - len(good)
        document |= _quantiles(way, good, "first_ms", "whole_ms")
    document["ratio"] = document["gateway_first_ms_p50"] / document["direct_first_ms_p50"]
    document["target"] = USERS_TARGET
    document["passed"] = document["ratio"] <= USERS_TARGET and not document["gateway_refused"]
    return document


def _users_script(options: UsersOptions) -> ReplicaScript:
    return ReplicaScript(
        delay=Fixed(options.first_token_s),
        decode=Fixed(options.decode_s),
        chunks=options.chunks,
        kv_tokens=options.kv_tokens,
    )


def _users_order(options: UsersOptions, url: str, turn: int) -> Order:
    return Order(
        (url,),
        turn * options.users,
        options.users,
        AT_ONCE_PER_S,
        prompt_chars=200,
        model=options.model,
        max_tokens=options.max_tokens,
    )


if __name__ == "__main__":
    main()
