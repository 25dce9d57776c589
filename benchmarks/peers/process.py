"""Samples the processor time and memory of a peer's program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from forebay.bench.processor import process_use
from forebay.errors import LaunchError

SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Use:
    """A program's use up to a moment. `memory_mb`: of all its processes; shared pages count once."""

    at_s: float
    processor_s: float
    memory_mb: float


class UseSampler:
    """Samples a program's use every second in a thread, during the block."""

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
