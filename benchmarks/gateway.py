"""Measures what the gateway adds to the time to first token: the same requests with and without it,
in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import quantile
from benchmarks.gateway_client import Answer, Order
from benchmarks.run_process import run_module
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

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
    """TTFT each way and the gateway's share; blocks. Raises `LaunchError` if a process fails.

    The added time is the difference of the quantiles of all rounds.
    """
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
    """The figures of all rounds. Raises `LaunchError` if an answer was wrong or missing."""
    document: dict[str, Any] = asdict(options)
    for way, answers in seen.items():
        wrong = [answer for answer in answers if answer.status != 200]
        if wrong:
            raise LaunchError(
                f"{way}: {len(wrong)} of {len(answers)} answers had a status like {wrong[0].status}"
            )
        for name, values in (
            ("ttft_ms", [answer.first_ms for answer in answers]),
            ("latency_ms", [answer.whole_ms for answer in answers]),
        ):
            ordered = sorted(values)
            document[f"{way}_{name}_p50"] = quantile(ordered, 0.5)
            document[f"{way}_{name}_p99"] = quantile(ordered, 0.99)
    for name in ("ttft_ms", "latency_ms"):
        for q in ("p50", "p99"):
            document[f"added_{name}_{q}"] = document[f"gateway_{name}_{q}"] - document[f"direct_{name}_{q}"]
    document["requests"] = len(seen["gateway"])
    document["target_ms"] = TARGET_MS
    document["passed"] = document["added_ttft_ms_p50"] <= TARGET_MS
    return document


def run_round(order: Order) -> list[Answer]:
    """Run one client process. Raises `LaunchError` with the end of its log."""
    order_text = json.dumps(asdict(order))
    found = run_module("benchmarks.gateway_client", order_text, timeout_s=ROUND_TIMEOUT_S)
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
