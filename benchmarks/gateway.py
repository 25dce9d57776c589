"""Measures what the gateway adds to the time to first token: the same load with and without it, in turn."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.grid.engines import SpreadTarget
from benchmarks.workload import quantile
from forebay.bench.client import measure
from forebay.bench.load.schedules import Bursts, Constant, RequestLoad, Schedule, make_load
from forebay.bench.load.workloads import Exactly, RandomWords
from forebay.bench.metrics import request_figures
from forebay.bench.records import RequestRecord
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, 0 if the answer broke off; and times from when it was due to its first token and its end."""

    status: int
    first_ms: float
    whole_ms: float


WAYS = ("direct", "gateway")
TARGET_MS = 5.0
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
    prompt_words: int = 400


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
                answers = run_round(load_of(options, turn), targets[way])
                if turn:
                    seen[way] += answers
    return report(options, seen)


def load_of(options: GatewayOptions, turn: int) -> RequestLoad:
    count = max(1, round(options.rate_per_s * options.seconds))
    return _load(Constant(options.rate_per_s), options.prompt_words, 16, count, turn)


def _load(schedule: Schedule, words: int, tokens: int, count: int, turn: int) -> RequestLoad:
    workload = RandomWords(Exactly(words), Exactly(tokens), exact=False)
    return make_load(schedule, workload, count, seed=turn)


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


def run_round(load: RequestLoad, urls: Sequence[str], model: str = "fake") -> list[Answer]:
    options = OpenAiOptions(model=model, chat=True, extensions=False)
    run = measure(SpreadTarget([OpenAiTarget(url, options) for url in urls]), load)
    if not run.complete:
        raise KeyboardInterrupt
    return list(map(_answer, run.records))


def _answer(record: RequestRecord) -> Answer:
    figures = request_figures(record)
    if figures is None or figures.ttft_s is None:
        ended_ms = (record.ended_s - record.due_s) * 1000
        return Answer(0 if record.status in (None, 200) else record.status, ended_ms, ended_ms)
    return Answer(200, figures.ttft_s * 1000, figures.e2el_s * 1000)


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


USERS_PROMPT_WORDS = 40
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
                load = _load(Bursts(), USERS_PROMPT_WORDS, options.max_tokens, options.users, turn)
                with gateway_process([url]) if way == "gateway" else nullcontext(url) as place:
                    seen[way] += run_round(load, [place], options.model)
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
