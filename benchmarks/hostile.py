"""What a hostile client of the gateway does to the latency of another: with and without it, in turn.

Replicas are scripted. Replicas, gateway and both clients are processes of their own; all go over the gateway.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from yarl import URL

from benchmarks.figures import quantile
from benchmarks.gateway import GatewayOptions, gateway_process, order_of, run_round
from benchmarks.gateway_client import Answer
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

TURNS = ("alone", "attacked")
ATTACKS_PER_S = 50.0
TARGET = 0.10
END_S = 30.0


def measure_hostile(options: GatewayOptions, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Latency in both turns and what the attack adds to its 99th percentile, as a share; blocks.

    Raises `LaunchError` where a process fails, or where an answer of the other client was wrong or missing.
    """
    script = ReplicaScript(delay=Fixed(options.first_token_s), token_s=options.token_s, chunks=options.chunks)
    seen: dict[str, list[Answer]] = {turn: [] for turn in TURNS}
    with ExitStack() as stack:
        replicas = [stack.enter_context(ReplicaProcess(script)).url for _ in range(options.replicas)]
        gateway = stack.enter_context(gateway_process(replicas))
        for number in range(options.rounds + 1):
            for turn in TURNS:
                note(f"round {number} of {options.rounds}: {turn}" if number else f"warming up: {turn}")
                with hostile(gateway) if turn == "attacked" else ExitStack():
                    answers = run_round(order_of(options, (gateway,), number))
                if number:
                    seen[turn] += answers
    return report(options, seen)


def report(options: GatewayOptions, seen: dict[str, list[Answer]]) -> dict[str, Any]:
    """The figures of all rounds. Raises `LaunchError` where an answer was wrong."""
    document: dict[str, Any] = {**asdict(options), "attacks_per_s": ATTACKS_PER_S}
    for turn, answers in seen.items():
        wrong = [answer.status for answer in answers if answer.status != 200]
        if wrong:
            raise LaunchError(f"{turn}: {len(wrong)} of {len(answers)} answers had a status like {wrong[0]}")
        ordered = sorted(answer.whole_ms for answer in answers)
        document |= {f"{turn}_ms_p50": quantile(ordered, 0.5), f"{turn}_ms_p99": quantile(ordered, 0.99)}
    document["added_p99"] = document["attacked_ms_p99"] / document["alone_ms_p99"] - 1
    document["requests"] = len(seen["attacked"])
    document["target"] = TARGET
    document["passed"] = document["added_p99"] <= TARGET
    return document


@contextmanager
def hostile(gateway: str) -> Iterator[None]:
    """A hostile client of `gateway` while the block lasts."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.hostile_client",
        str(URL(gateway).port),
        str(ATTACKS_PER_S),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield
            if process.poll() is not None:
                raise LaunchError(f"the hostile client ended with status {process.returncode}")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
