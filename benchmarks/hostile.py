"""Measures how the latency of other clients of the gateway changes while one client is hostile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

from yarl import URL

from benchmarks.figures import quantile
from benchmarks.gateway import GatewayOptions, gateway_process, order_of, run_round
from benchmarks.gateway_client import Answer
from benchmarks.hostile_client import WAYS
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

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
    """Measure the latency of the others with and without each of `ways`; blocks.

    Raises `LaunchError` if a process fails.
    """
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
    """Run a hostile client of `gateway` during the block."""
    command = [sys.executable, "-m", "benchmarks.hostile_client", str(URL(gateway).port), way]
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
