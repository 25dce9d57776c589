"""Runs one peer under one load: starts, warms up, feeds and perhaps kills it, and watches until its last
result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.base import PROGRAMS, SYSTEM, Order, Peer
from benchmarks.peers.feed import Feed, Seen, Topics, Watch
from benchmarks.run_process import RunProcess
from forebay.bench.resources import process_use
from forebay.errors import LaunchError
from forebay.flink.checkpoints import newest_checkpoint
from forebay.flink.rest import FlinkRest, tls_keys
from forebay.ports import free_port
from forebay.settings import Settings

START_S = 180.0
WARM_EVERY_S = 0.25
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    rate_per_s: float
    seconds: float
    warm_s: float = 0.0
    kill_at_s: float | None = None
    drain_s: float = 60.0
    capacity: int = 256
    max_tokens: int = 16

    @property
    def events(self) -> int:
        return round(self.rate_per_s * self.seconds)


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations of one run, on the monotonic clock."""

    start_s: float
    end_s: float
    late_s: float
    written: tuple[Seen, ...]
    committed: tuple[Seen, ...]
    use: tuple[Use, ...]
    checkpoints_ms: tuple[int, ...] | None
    ready_s: float
    back_s: float | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs: its Python, the broker, the engine, and its own folder."""

    python: Path
    bootstrap: str
    engine: str
    model: str
    work: Path
    settings: Settings
    environment: Mapping[str, str]


def observe(
    peer: Peer,
    load: Load,
    place: Place,
    *,
    began: Callable[[float], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Observed:
    topics = Topics(place.bootstrap)
    order_file = place.work / "order.json"
    order = _order(peer, load, place, topics)
    order.write(order_file)
    command = [str(place.python), str(PROGRAMS / peer.program), str(order_file)]
    with ExitStack() as stack:
        process = stack.enter_context(RunProcess(command, place.work, place.environment, place.work))
        written = stack.enter_context(Watch(topics, committed=False))
        committed = stack.enter_context(Watch(topics, committed=True))
        feed = Feed(topics)
        note("starting")
        begin_s = time.monotonic()
        process.start()
        _warm_up(process, feed, written, peer)
        ready_s = time.monotonic() - begin_s
        sampler = stack.enter_context(UseSampler(process.processes))
        note(f"{load.events} events, {load.rate_per_s:g} a second")
        start_s = time.monotonic() + LOOK_S
        sender = _Sender(feed, load, start_s)
        began(start_s)
        warm_at = time.time() + LOOK_S + load.warm_s
        back_s = None
        if load.kill_at_s is not None:
            _sleep_until(start_s + load.kill_at_s)
            note("killed; starting again")
            process.kill()
            killed_s = time.monotonic()
            before = len(written.seen)
            replace(order, restore_from=_newest(peer, place)).write(order_file)
            process.start()
            _wait(lambda: len(written.seen) > before or process.status() is not None, START_S)
            back_s = time.monotonic() - killed_s
        late_s = sender.wait()
        end_s = time.monotonic()
        note("waiting for the last results")
        _wait(lambda: committed.events >= load.events or process.status() is not None, load.drain_s)
        # Duplicates may arrive late.
        _wait(lambda: False, min(3.0, load.drain_s))
        checkpoints_ms = _checkpoints(peer, order, place, warm_at)
        status = process.status()
        ended = None if status is None else f"ended with status {status}: {process.output()[-600:]}"
        return Observed(
            start_s=start_s,
            end_s=end_s,
            late_s=late_s,
            written=written.seen,
            committed=committed.seen,
            use=tuple(sampler.samples),
            checkpoints_ms=checkpoints_ms,
            ready_s=ready_s,
            back_s=back_s,
            ended=ended,
        )


class _Sender:
    def __init__(self, feed: Feed, load: Load, start_s: float) -> None:
        self._late_s = 0.0

        def send() -> None:
            self._late_s = feed.send_paced(load.events, load.rate_per_s, start_s)

        self._thread = threading.Thread(target=send, name="peer-feed", daemon=True)
        self._thread.start()

    def wait(self) -> float:
        self._thread.join()
        return self._late_s


def _order(peer: Peer, load: Load, place: Place, topics: Topics) -> Order:
    state = place.work / "state"
    state.mkdir()
    return Order(
        bootstrap=topics.bootstrap,
        events=topics.events,
        results=topics.results,
        letters=topics.letters,
        engine=place.engine,
        model=place.model,
        system=SYSTEM,
        max_tokens=load.max_tokens,
        capacity=load.capacity,
        state=str(state),
        rest_port=free_port(),
        jars=tuple(str(place.settings.connectors / name) for name in peer.jars),
        options=peer.options,
    )


def _warm_up(process: RunProcess, feed: Feed, watch: Watch, peer: Peer) -> None:
    until_s = time.monotonic() + START_S
    number = 0
    while not watch.warm:
        if process.status() is not None or time.monotonic() > until_s:
            raise LaunchError(f"{peer.title} gave no result: {process.output()}")
        feed.send(f"warm-{number}")
        number += 1
        _wait(lambda: watch.warm > 0, WARM_EVERY_S)


def _newest(peer: Peer, place: Place) -> str | None:
    if peer.checkpoints != "flink":
        return None
    found = newest_checkpoint(place.work / "state")
    return None if found is None else str(found)


def durations_ms(history: Iterable[Mapping[str, Any]], since: float) -> tuple[int, ...]:
    """Duration of each complete checkpoint of Flink's `history` that began at wall-clock time `since`
    (seconds) or later."""
    return tuple(
        each["end_to_end_duration"]
        for each in history
        if each["status"] == "COMPLETED" and each["trigger_timestamp"] >= since * 1000
    )


def _checkpoints(peer: Peer, order: Order, place: Place, since: float) -> tuple[int, ...] | None:
    if peer.checkpoints is None:
        return None
    if peer.checkpoints == "flink":
        rest = FlinkRest(f"http://127.0.0.1:{order.rest_port}")
    else:
        keys = tls_keys(place.settings.run / "flink" / "keys")
        rest = FlinkRest(f"https://localhost:{order.rest_port}", keys)
    try:
        jobs: Any = rest.json("/jobs")["jobs"]
        history = rest.json(f"/jobs/{jobs[0]['id']}/checkpoints")["history"]
    except (LaunchError, LookupError):
        return None
    return durations_ms(history, since)


def _wait(there: Callable[[], bool], seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while not there():
        if time.monotonic() >= until_s:
            return False
        time.sleep(min(LOOK_S, max(0.0, until_s - time.monotonic())))
    return True


def _sleep_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.monotonic()))


SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Use:
    at_s: float
    processor_s: float
    memory_mb: float


class UseSampler:
    def __init__(self, processes: Callable[[], set[psutil.Process]]) -> None:
        self._processes = processes
        self._used: dict[int, float] = {}
        self.samples: list[Use] = []
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peer-use", daemon=True)

    def __enter__(self) -> UseSampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._left.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(SAMPLE_S):
            memory_mb = 0.0
            for process in self._processes():
                with suppress(LaunchError):
                    use = process_use(process.pid)
                    memory_mb += use.memory_mb
                    # A process that has ended counts with its last sample.
                    self._used[process.pid] = use.processor_s
            self.samples.append(Use(time.monotonic(), sum(self._used.values()), memory_mb))
