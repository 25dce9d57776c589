"""Measures sessions: the prefix-cache hit share, and whether a turn is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.conversations import MAX_TOKENS, expected_answers, messages, rendered_again
from forebay.apps.sessions import RULE, SYSTEM, Sessions
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.engine.client import HttpEngine
from forebay.engine.replica import list_models
from forebay.errors import PipelineFailed, SettingError
from forebay.json_numbers import read_json
from forebay.records import Request, Sampling, Usage
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

Note = Callable[[str], None]
TURNS = 10
TIMEOUT_S = 600.0
BASELINE = "stateless, history repeated below a changing header"


@dataclass(frozen=True, slots=True)
class Load:
    """`sessions` concurrent conversations of `TURNS` turns, with messages of about `words` words."""

    sessions: int
    budget_tokens: int
    words: int


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    scripted: Load = Load(200, 384, 30)
    real: Load = Load(8, 1024, 45)
    seed: int = 1


def measure_sessions(
    plan: SessionsPlan, engine: str | None, skipped: dict[str, str], note: Note = lambda _: None
) -> dict[str, Any]:
    """Figures on a scripted replica, on two of them (`two_replicas`), and on the engine at that URL
    (`engine`)."""
    # Cached in blocks of 16 tokens of 4 characters, as vLLM does.
    script = ReplicaScript(delay=Fixed(0.05), block_chars=64, cache_blocks=200_000)
    with ReplicaProcess(script) as replica:
        report = _measured(plan.seed, plan.scripted, [replica.url], note, scripted=True)
    with ReplicaProcess(script) as first, ReplicaProcess(script) as second:
        report["two_replicas"] = _measured(
            plan.seed, plan.scripted, [first.url, second.url], note, scripted=True
        )
    with ReplicaProcess(script) as replica:
        report["baselines"] = {BASELINE: _baseline(plan.seed, plan.scripted, replica.url, note)}
    if engine is None:
        skipped["sessions on a real engine"] = "--engine names its URL"
    else:
        real = _measured(plan.seed, plan.real, [engine], note, scripted=False)
        report["engine"] = {**real, "baselines": {BASELINE: _baseline(plan.seed, plan.real, engine, note)}}
        if not real["cached_tokens"]:
            skipped["hit_share on the engine"] = (
                "it reports no cached tokens; start vLLM with --enable-prompt-tokens-details"
            )
    return report


def _measured(seed: int, load: Load, urls: Sequence[str], note: Note, *, scripted: bool) -> dict[str, Any]:
    events = _events(seed, load)
    settings = Sessions(budget_tokens=load.budget_tokens, idle_s=None)
    with tempfile.TemporaryDirectory(prefix="forebay-sessions-") as folder:
        began_s = time.monotonic()
        rows = _run(Path(folder), events, settings, urls, capacity=load.sessions)
        seconds = time.monotonic() - began_s
    figures = judged(events, rows, expected_answers(events, settings) if scripted else None)
    figures |= {"sessions": load.sessions, "turns": len(events), "seconds": round(seconds, 1)}
    note(f"{load.sessions} sessions of {TURNS} turns, {len(urls)} replicas: {figures}")
    return figures


def _run(
    folder: Path, events: list[dict[str, Any]], settings: Sessions, urls: Sequence[str], *, capacity: int
) -> list[dict[str, Any]]:
    (folder / "events.jsonl").write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in events))
    document = {
        "name": "sessions",
        "source": {"type": "jsonl", "path": "events.jsonl"},
        "application": {
            "type": "sessions",
            "budget_tokens": settings.budget_tokens,
            "idle_s": settings.idle_s,
        },
        "key": "{{ user }}",
        "routing": "session_affinity",
        "sampling": {"max_tokens": MAX_TOKENS},
        "capacity": capacity,
        "sink": {"type": "jsonl", "path": "results"},
        "checkpoint": {"interval_s": 1.0},
    }
    (folder / "pipeline.yaml").write_bytes(orjson.dumps(document))
    command = [sys.executable, "-m", "forebay", "run", str(folder / "pipeline.yaml")]
    command += [word for url in urls for word in ("--engine", url)]
    done = subprocess.run(
        command,
        env={**os.environ, "FOREBAY_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise PipelineFailed(f"the pipeline ended with status {done.returncode}: {done.stderr[-2000:]}")
    return [read_json(line) for line in read_jsonl_sink(folder / "results")]


def judged(
    events: list[dict[str, Any]], rows: Iterable[dict[str, Any]], expected: list[Any] | None
) -> dict[str, Any]:
    of_event: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        of_event[row["fields"]["n"]].append(row)
    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    wrong = disorder = 0
    counted = Counter[str]()
    for event in events:
        found = of_event.get(event["n"], [])
        counted[event["user"]] += 1
        for row in found[:1]:
            sessions[event["user"]].append(row)
            disorder += row["answer"]["turn"] != counted[event["user"]]
            wrong += expected is not None and row["answer"] != expected[event["n"]]
    turns = [[_turn(row) for row in of_key] for of_key in sessions.values()]
    usage = [usage for of_key in turns for _, usage in of_key]
    return {
        "hit_share": hit_share(turns),
        "lost": len(events) - len(of_event),
        "doubled": sum(len(found) - 1 for found in of_event.values()),
        "disorder": disorder,
        "wrong": wrong,
        "folds": sum(of_key[-1]["answer"]["folds"] for of_key in sessions.values()),
        "prompt_tokens": sum(each.prompt_tokens for each in usage),
        "cached_tokens": sum(each.cached_tokens for each in usage),
    }


def _turn(row: dict[str, Any]) -> tuple[str, Usage]:
    return row["fields"]["text"], Usage(**row["usage"])


def hit_share(sessions: Iterable[list[tuple[str, Usage]]]) -> float | None:
    cached = repeated = 0.0
    for turns in sessions:
        text, usage = turns[0]
        per_char = usage.prompt_tokens / (
            len(text) + len(SYSTEM) + len(RULE) + len("\n<message>\n\n</message>\n")
        )
        for prompt, spent in turns[1:]:
            cached += spent.cached_tokens
            repeated += max(0.0, spent.prompt_tokens - len(prompt) * per_char)
    return round(min(1.0, cached / repeated), 4) if repeated else None


def _events(seed: int, load: Load) -> list[dict[str, Any]]:
    return list(messages(load.sessions * TURNS, load.sessions, seed, words=load.words))


def _baseline(seed: int, load: Load, url: str, note: Note) -> dict[str, Any]:
    events = _events(seed, load)
    began_s = time.monotonic()
    turns = asyncio.run(_stateless(events, url))
    usage = [usage for of_key in turns for _, usage in of_key]
    figures = {
        "hit_share": hit_share(turns),
        "prompt_tokens": sum(each.prompt_tokens for each in usage),
        "cached_tokens": sum(each.cached_tokens for each in usage),
        "seconds": round(time.monotonic() - began_s, 1),
    }
    note(f"{BASELINE}: {figures}")
    return figures


async def _stateless(events: list[dict[str, Any]], url: str) -> list[list[tuple[str, Usage]]]:
    served = await list_models(url)
    if not served:
        raise SettingError(f"--engine: the engine at {url} serves no model")
    engine = HttpEngine(url)

    async def converse(of_key: list[dict[str, Any]]) -> list[tuple[str, Usage]]:
        turns: list[tuple[str, str]] = []
        spent = []
        for event in of_key:
            header = f"{SYSTEM} It is {event['n'] * 7919 % 86_400} seconds after midnight."
            prompt = rendered_again(header, turns, event["text"])
            request = Request(
                f"plain-{event['n']}", served[0].name, prompt, sampling=Sampling(max_tokens=MAX_TOKENS)
            )
            completion = await engine.complete(request, timeout_s=120.0)
            turns.append((event["text"], completion.text))
            spent.append((event["text"], completion.usage))
        return spent

    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        sessions[event["user"]].append(event)
    try:
        return list(await asyncio.gather(*(converse(of_key) for of_key in sessions.values())))
    finally:
        await engine.close()
