"""Lasting faults: how each begins and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks.drill.link import Link
from benchmarks.drill.machine import Engine, Machine
from benchmarks.drill.scenario import Fault, FaultKind, Standstill
from benchmarks.drill.shim import Shim
from benchmarks.run_process import Part, go_on
from forebay.errors import PipelineFailed
from forebay.testing.kafka import LocalKafka

SLOW_MS = 30
PAUSED: dict[FaultKind, Part] = {"pause all": "all", "pause command": "command", "pause jvm": "jvm"}
Step = Callable[[], object]


@dataclass(frozen=True)
class Scene:
    """The targets of faults in a scenario; None: it has no such target."""

    machine: Machine
    engine: Engine
    shim: Shim | None = None
    feed: Link | None = None
    kafka: LocalKafka | None = None


@contextmanager
def lasting(fault: Fault, scene: Scene) -> Iterator[None]:
    """Make a fault during the block. Raises `PipelineFailed` if the scenario cannot have it."""
    begin, end = _beginning_and_end(fault, scene)
    begin()
    try:
        yield
    finally:
        end()


def standing_still(still: Standstill, machine: Machine) -> tuple[Step, Step]:
    """Functions that pause and resume the run on a machine."""
    if still == "cut":
        assert machine.link is not None
        return machine.link.stall, machine.link.restore
    assert still != "dead"
    return _paused(still, machine)


def _paused(part: Part, machine: Machine) -> tuple[Step, Step]:
    paused: set[psutil.Process] = set()
    return lambda: paused.update(machine.run.suspend(part)), lambda: go_on(paused)


def _beginning_and_end(fault: Fault, scene: Scene) -> tuple[Step, Step]:
    engine, shim, feed, kafka, store = scene.engine, scene.shim, scene.feed, scene.kafka, scene.machine.link
    match fault.kind:
        case "pause all" | "pause command" | "pause jvm":
            return _paused(PAUSED[fault.kind], scene.machine)
        case "pause engine":
            process = engine.process()
            return process.suspend, process.resume
        case "kill engine":
            return engine.kill, engine.start
        case "cut engine":
            return engine.link.cut, engine.link.restore
        case "stall engine":
            return engine.link.stall, engine.link.restore
        case "cut feed" if feed is not None:
            return feed.cut, feed.restore
        case "stall feed" if feed is not None:
            return feed.stall, feed.restore
        case "cut store" if store is not None:
            return store.cut, store.restore
        case "stall store" if store is not None:
            return store.stall, store.restore
        case "busy store" if store is not None:
            return store.busy, store.restore
        case "kill broker" if kafka is not None:
            return kafka.kill, kafka.start
        case "pause broker" if kafka is not None:
            return kafka.pause, kafka.go_on
        case "full disk" if shim is not None:
            return lambda: shim.full(True), lambda: shim.full(False)
        case "slow disk" if shim is not None:
            return lambda: shim.slow(SLOW_MS), lambda: shim.slow(0)
        case "step clock" if shim is not None:
            return lambda: shim.step_clock(fault.step_s), lambda: None
    raise PipelineFailed(f"the scenario has the fault {fault.kind!r}, which it cannot have")
