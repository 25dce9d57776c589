"""Compares a run with an addition (an open page, traces) with one without it, in turn."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

from benchmarks.cost import (
    CALL_S,
    COMMAND,
    Feed,
    Run,
    answers,
    await_rest,
    processor_name,
    started_feed,
    started_run,
)
from forebay.bench.resources import process_use
from forebay.errors import LaunchError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

Report = dict[str, Any]
Note = Callable[[str], None]

READ_TIMEOUT_S = 1800.0
WITH, WITHOUT = "with", "without"
TRACES_PER_S = 200.0
"""At this rate a run does not fill a core; else its cost per answer depends on how its threads are placed."""


@dataclass(frozen=True, slots=True)
class AdditionOptions:
    """`rate_per_s`: events offered. Seconds of each turn, of settling before it, and of the warm-up of each
    run."""

    rounds: int = 5
    rate_per_s: float = 1000.0
    seconds: float = 8.0
    settle_s: float = 2.0
    warm_s: float = 10.0


def measure_page(options: AdditionOptions, note: Note = lambda _: None) -> Report:
    """Compare a run whose page is open with one without a page; blocks for minutes.

    The page is read by one client as a browser does it, and a second one never reads what it asked for.
    """
    return _measure(("--ui",), lambda run: open_page(page_address(run.output())), options, note)


def measure_traces(options: AdditionOptions, note: Note = lambda _: None) -> Report:
    """Compare a run that sends traces of one event in a hundred with one without traces, at `TRACES_PER_S`;
    blocks for minutes."""
    options = replace(options, rate_per_s=TRACES_PER_S)
    with collector() as spans:
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
            "OTEL_EXPORTER_OTLP_ENDPOINT": spans.url,
            "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
        }
        with patch.dict(os.environ, variables, clear=True):
            report = _measure(("--set", "opentelemetry=true"), lambda _: nullcontext(), options, note)
        if not spans.has_traces:
            raise LaunchError("the run with traces has sent none to the collector")
        return report


def _measure(
    addition: tuple[str, ...],
    during: Callable[[Run], AbstractContextManager[None]],
    options: AdditionOptions,
    note: Note,
) -> Report:
    """`addition`: options of `forebay run`. `during`: what happens during a turn of the run with them."""
    turns: dict[str, list[Report]] = {WITH: [], WITHOUT: []}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="forebay-addition-")))
        runs = {}
        for name in turns:
            note(f"starting the run {name}")
            more = addition if name == WITH else ()
            # One each: a replica counts the answers of different requests, and both runs make the same.
            replica = opened.enter_context(ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))))
            feed = opened.enter_context(started_feed())
            run = opened.enter_context(started_run(folder / name, replica.url, feed, *more))
            feed.pace(options.rate_per_s)
            time.sleep(options.warm_s)
            feed.pace(0)
            runs[name] = run, feed, replica
        for number in range(options.rounds):
            for name in sorted(turns, reverse=number % 2 == 0):
                run, feed, replica = runs[name]
                with during(run) if name == WITH else nullcontext():
                    found = _turn(run, feed, replica, options)
                await_rest(replica)
                turns[name].append(found)
                words = " ".join(f"{figure} {value:.4g}" for figure, value in found.items())
                note(f"round {number + 1} of {options.rounds}, {name}: {words}")
    return addition_report(turns)


def _turn(run: Run, feed: Feed, replica: ReplicaProcess, options: AdditionOptions) -> Report:
    feed.pace(options.rate_per_s)
    time.sleep(options.settle_s)
    run.check()
    used, before, began_s = _used_s(run), answers(replica), time.monotonic()
    time.sleep(options.seconds)
    seconds, done = time.monotonic() - began_s, answers(replica) - before
    used = {name: after_s - used[name] for name, after_s in _used_s(run).items()}
    feed.pace(0)
    if not done:
        raise LaunchError(f"the run gave no answer in a turn of {options.seconds:g} s: {run.output()}")
    return {
        "answers_per_s": done / seconds,
        "ms_per_answer": 1000 * sum(used.values()) / done,
        "command_cores": used[COMMAND] / seconds,
    }


def _used_s(run: Run) -> dict[str, float]:
    return {name: process_use(pid).processor_s for name, pid in run.processes().items()}


def addition_report(turns: dict[str, list[Report]]) -> Report:
    """The medians of each way's turns, and the rounds' ratios (with over without) with their median: of
    answers a second, and of processor time per answer."""
    medians = {
        name: {figure: round(median(turn[figure] for turn in found), 4) for figure in found[0]}
        for name, found in turns.items()
    }
    report: Report = {"processor": processor_name(), **medians}
    for figure in ("answers_per_s", "ms_per_answer"):
        pairs = zip(turns[WITH], turns[WITHOUT], strict=True)
        ratios = [round(more[figure] / bare[figure], 4) for more, bare in pairs]
        report[f"{figure}_ratios"], report[f"{figure}_ratio"] = ratios, median(ratios)
    return report


def page_address(output: str) -> str:
    found = re.search(r"watch this run at (\S+)", output)
    if found is None:
        raise LaunchError(f"the run has no page: {output}")
    return found[1]


@contextmanager
def open_page(url: str) -> Iterator[None]:
    """A client that reads the page as a browser does, and one that never reads, during the block."""
    ended = threading.Event()

    def read() -> None:
        shown: dict[str, int] = {}
        _get(url)
        with urlopen(f"{url}events", timeout=READ_TIMEOUT_S) as events:
            while not ended.is_set() and (line := events.readline()):
                if not line.startswith(b"data: "):
                    continue
                wanted = json.loads(line[6:])
                for part in [name for name, version in wanted.items() if shown.get(name) != version]:
                    _get(f"{url}part/{part}")
                shown = wanted

    reader = threading.Thread(target=read, daemon=True)
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port))) as silent:
        for part in ("", "events"):
            silent.sendall(f"GET /{path}{part} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        reader.start()
        try:
            yield
            if not reader.is_alive():
                raise LaunchError("the page could not be read while it was measured")
        finally:
            ended.set()
            reader.join()


def _get(url: str) -> None:
    with urlopen(url, timeout=READ_TIMEOUT_S) as answer:
        answer.read()


class Collector(ThreadingHTTPServer):
    """Takes all telemetry and keeps none."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.has_traces = False


class _CollectorHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        if self.path.endswith("/v1/traces"):
            self.server.has_traces = True
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
