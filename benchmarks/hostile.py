"""Measures how the latency of other clients of the gateway changes while one client is hostile."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import orjson
from yarl import URL

from benchmarks.gateway import Answer, GatewayOptions, gateway_process, order_of, run_round
from benchmarks.workload import quantile
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import ANSWERS, Fixed

MAX_OPEN = 500
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
GREEDY = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1e308,"n":1000000}'
DEEP = b'{"model":"fake","messages":' + b"[" * 900 + b"]" * 900 + b"}"
READ_BYTES = 65_536
ADDRESS = "127.0.0.2"
"""It has its own address, as clients of a gateway without keys are told apart by theirs."""


@dataclass(frozen=True, slots=True)
class Way:
    """A hostile behaviour: opens `per_s` connections per second and sends one of `requests` on
    each. `trickle_s`: send another byte at this interval. Without `reads`, the answer is never
    read."""

    requests: tuple[bytes, ...]
    per_s: float = 20.0
    patience_s: float = 1.0
    trickle_s: float | None = None
    reads: bool = True


def call(body: bytes, headers: bytes = b"") -> bytes:
    return HEAD + headers + b"content-length: %d\r\n\r\n" % len(body) + body


def prompts(faults: Iterable[str]) -> tuple[bytes, ...]:
    """Streamed chats for which the scripted replica has these faults; an empty name means a good answer."""
    return tuple(
        call(
            orjson.dumps(
                {
                    "model": "fake",
                    "messages": [{"role": "user", "content": f"((fault:{fault}))" if fault else "Hello"}],
                    "max_tokens": 16,
                    "stream": True,
                }
            ),
            b"connection: close\r\n",
        )
        for fault in faults
    )


def large(item: bytes) -> bytes:
    """A chat of 2 MB that is slow to read."""
    begin = b'{"model":"fake","messages":[{"role":"user","content":"x"}],"max_tokens":1,"tools":['
    return call(begin + item * ((2_000_000 - len(begin)) // len(item)) + b"1]}")


MALFORMED = (
    HEAD + b"x-a: " + b"a" * 65_536,
    b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % number for number in range(2000)) + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    call(b"{"),
    call(DEEP),
    HEAD + b"content-length: 104857600\r\n\r\n" + b"x" * 262_144,
    call(b'{"model":"none","messages":[{"role":"user","content":"' + b"x" * 100_000 + b'"}]}'),
    call(GREEDY),
    b"GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n" * 50,
)

WAYS = {
    "as others": Way(prompts([""])),
    "malformed": Way(MALFORMED, per_s=50.0, patience_s=20.0, trickle_s=0.2),
    "large bodies": Way(tuple(map(large, (b"[],", b"1,", b'"a",', b"1.5,"))), patience_s=20.0),
    "slow body": Way(
        (HEAD + b"content-length: 100000\r\n\r\n{",), per_s=50.0, patience_s=20.0, trickle_s=0.2
    ),
    "hangs up": Way(prompts([""]), patience_s=0.06),
    "reads nothing": Way(prompts(["huge"]), per_s=2.0, patience_s=20.0, reads=False),
    "refused": Way(prompts(["401", "403"])),
    "bad request": Way(prompts(["400", "404", "422", "too_long"])),
    "busy": Way(prompts(["429", "503"])),
    "error": Way(prompts(["500", "502", "504", "error"])),
    "cut": Way(prompts(["cut", "refuse"])),
    "no stream": Way(prompts(["garbage", "binary"])),
    "no answer": Way(prompts(["hang"])),
    "odd answer": Way(prompts(sorted(ANSWERS))),
    "endless": Way(prompts(["huge"]), per_s=2.0),
}
"""`as others` sends normal requests: how much the others' latency changes with the load alone."""


async def attack(port: int, way: Way, request: bytes) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ADDRESS, 0))
        try:
            writer.write(request)
            parts = [asyncio.sleep(way.patience_s) if not way.reads else _read_all(reader)]
            if way.trickle_s is not None:
                parts.append(_trickle(writer, way.trickle_s))
            tasks = [asyncio.ensure_future(part) for part in parts]
            try:
                await asyncio.wait(tasks, timeout=way.patience_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            writer.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(READ_BYTES):
        pass


async def _trickle(writer: asyncio.StreamWriter, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        writer.write(b"x")
        await writer.drain()


async def main(port: int, way: Way) -> None:
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print("started", flush=True)
    running: set[asyncio.Task[None]] = set()
    for request in itertools.cycle(way.requests):
        if ended.done():
            break
        if len(running) < MAX_OPEN:
            task = asyncio.create_task(attack(port, way, request))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(1 / way.per_s)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


TURNS = ("alone", "attacked")
TARGET = 1.10
END_S = 30.0

Rounds = dict[str, list[list[Answer]]]


def measure_hostile(
    options: GatewayOptions,
    note: Callable[[str], None] = lambda _: None,
    *,
    ways: Sequence[str] = tuple(WAYS),
) -> dict[str, Any]:
    script = ReplicaScript(delay=Fixed(options.first_token_s), token_s=options.token_s, chunks=options.chunks)
    seen: dict[str, Rounds] = {way: {turn: [] for turn in TURNS} for way in ways}
    with ExitStack() as stack:
        replicas = [stack.enter_context(ReplicaProcess(script)).url for _ in range(options.replicas)]
        gateway = stack.enter_context(gateway_process(replicas))
        note("warming up")
        run_round(order_of(options, (gateway,), 0))
        for number in range(1, options.rounds + 1):
            for way in ways:
                for turn in TURNS:
                    note(f"round {number} of {options.rounds}: {way}, {turn}")
                    with hostile(gateway, way) if turn == "attacked" else ExitStack():
                        seen[way][turn].append(run_round(order_of(options, (gateway,), number)))
    return report(options, seen)


def report(options: GatewayOptions, seen: dict[str, Rounds]) -> dict[str, Any]:
    ways = {way: _figures(rounds) for way, rounds in seen.items()}
    return {
        **asdict(options),
        "ways": ways,
        "target": TARGET,
        "passed": all(found["p99_ratio"] <= TARGET and not found["lost"] for found in ways.values()),
    }


def _figures(rounds: Rounds) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        for turn in TURNS:
            found[f"{turn}_ms_{name}"] = median(
                quantile(sorted(answer.whole_ms for answer in answers), q) for answers in rounds[turn]
            )
        found[f"{name}_ratio"] = found[f"attacked_ms_{name}"] / found[f"alone_ms_{name}"]
    answers = [answer for answers in rounds["attacked"] for answer in answers]
    return {**found, "requests": len(answers), "lost": sum(answer.status != 200 for answer in answers)}


@contextmanager
def hostile(gateway: str, way: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.hostile", str(URL(gateway).port), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
            if process.poll() is not None:
                raise LaunchError(f"the hostile client ended with status {process.returncode}")
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    # Its own computing must not slow down the others: an attacker has another machine.
    os.nice(19)
    asyncio.run(main(int(sys.argv[1]), WAYS[sys.argv[2]]))
