"""A peer's program in its own session: started, sampled, and killed with all its processes."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from forebay.bench.processor import process_use
from forebay.errors import LaunchError
from forebay.processes import descendants, kill, parent_death_signal, session_members, wait_gone

GONE_S = 30.0
SAMPLE_S = 1.0
LAST_WORDS = 2000


class PeerProcess:
    """Starts one command, once or again; a context manager that ends all its processes.

    Output goes to `work/run-N.log`.
    """

    def __init__(self, command: Sequence[str], work: Path, environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._work = work
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
            )

    @property
    def log(self) -> Path:
        """Log of the latest start."""
        return self._work / f"run-{self.starts}.log"

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-LAST_WORDS:].strip()

    def status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def processes(self) -> set[psutil.Process]:
        """The living processes of the program."""
        if self._process is None:
            return set()
        return descendants(self._process.pid) | session_members(self._process.pid)

    def kill(self) -> None:
        """SIGKILL all of them; blocks until they are gone. Raises `LaunchError` if one stays."""
        if self._process is None:
            return
        # Collect all before the first dies: orphans get another parent.
        everyone = self.processes()
        for each in everyone:
            with suppress(psutil.Error):
                each.suspend()
        everyone |= self.processes()
        kill(everyone)
        self._process.wait()
        kill(self.processes())
        if left := wait_gone(everyone, GONE_S):
            raise LaunchError(f"processes outlived SIGKILL: {sorted(process.pid for process in left)}")

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


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
