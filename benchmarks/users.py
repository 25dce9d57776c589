"""Compares first tokens of users who all ask at once: of an engine, and of a freshly started
gateway in front of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import quantile
from benchmarks.gateway import WAYS, gateway_process, run_round
from benchmarks.gateway_client import Answer, Order
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

AT_ONCE_PER_S = 1e9
TARGET = 1.3


@dataclass(frozen=True, slots=True)
class UsersOptions:
    """`rounds` of `users` each way.

    Without `url`, a scripted engine begins after `first_token_s`, streams for `decode_s`, and reports a KV
    cache of `kv_tokens`; `model` and `max_tokens` are for a real one.
    """

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
    """First tokens each way, and their ratio; blocks. Raises `LaunchError` if a process fails."""
    seen: dict[str, list[Answer]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        url = options.url or stack.enter_context(ReplicaProcess(_script(options))).url
        for turn in range(options.rounds):
            for way in WAYS:
                note(f"round {turn + 1} of {options.rounds}: {way}")
                if way == "direct":
                    seen[way] += run_round(_order(options, url, turn))
                    continue
                with gateway_process([url]) as gateway:
                    seen[way] += run_round(_order(options, gateway, turn))
    return report(options, seen)


def report(options: UsersOptions, seen: dict[str, list[Answer]]) -> dict[str, Any]:
    document: dict[str, Any] = asdict(options)
    for way, answers in seen.items():
        good = [answer for answer in answers if answer.status == 200]
        document[f"{way}_answers"], document[f"{way}_refused"] = len(good), len(answers) - len(good)
        for name, values in (
            ("first_ms", sorted(answer.first_ms for answer in good)),
            ("whole_ms", sorted(answer.whole_ms for answer in good)),
        ):
            document[f"{way}_{name}_p50"] = quantile(values, 0.5)
            document[f"{way}_{name}_p99"] = quantile(values, 0.99)
    document["ratio"] = document["gateway_first_ms_p50"] / document["direct_first_ms_p50"]
    document["target"] = TARGET
    document["passed"] = document["ratio"] <= TARGET and not document["gateway_refused"]
    return document


def _script(options: UsersOptions) -> ReplicaScript:
    return ReplicaScript(
        delay=Fixed(options.first_token_s),
        decode=Fixed(options.decode_s),
        chunks=options.chunks,
        kv_tokens=options.kv_tokens,
    )


def _order(options: UsersOptions, url: str, turn: int) -> Order:
    return Order(
        (url,),
        turn * options.users,
        options.users,
        AT_ONCE_PER_S,
        prompt_chars=200,
        model=options.model,
        max_tokens=options.max_tokens,
    )
