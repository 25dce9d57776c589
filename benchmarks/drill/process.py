"""`forebay run` as a process with all that it starts: to be killed, paused and stopped in part or whole.

The parts are found by what the system knows (process tree, session, names), nothing by how a run is built.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import orjson
import psutil

from forebay.errors import PipelineFailed
from forebay.processes import alive, descendants, session_members, wait_gone

GONE_S = 30.0
STOP_S = 120.0
Part = Literal["all", "command", "jvm", "all but jvm"]


class PipelineRun:
    """Starts of one command, one after another. What each prints goes to `logs/run-N.log`, and the document
    of its `--json` to `logs/report-N.json`. A context manager: nothing of the last start outlives the
    block."""

    def __init__(self, command: Sequence[str], logs: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self._command = list(command)
        self._logs = logs
        self._environment = dict(environment)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Give the command; returns at once."""
        self.starts += 1
        self._logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._command, "--json", str(self._logs / f"report-{self.starts}.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._cwd,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self._logs / f"run-{self.starts}.log"

    def said(self) -> str:
        """The end of what the latest start printed."""
        return self.log.read_text(errors="replace")[-1500:].strip() if self.log.exists() else ""

    def texts(self) -> Iterator[str]:
        """What all starts printed and reported."""
        for path in sorted(self._logs.iterdir()):
            yield path.read_text(errors="replace")

    def report(self) -> Mapping[str, Any] | None:
        """The document of the latest start's `--json`; None if it wrote none."""
        path = self._logs / f"report-{self.starts}.json"
        found = orjson.loads(path.read_bytes()) if path.is_file() and path.stat().st_size else None
        return found if isinstance(found, dict) else None

    def status(self) -> int | None:
        """The command's exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    def processes(self, part: Part) -> set[psutil.Process]:
        """The living processes of a part of the run."""
        if self._process is None:
            return set()
        family = session_members(self._process.pid) | descendants(self._process.pid)
        with suppress(psutil.NoSuchProcess):
            command = psutil.Process(self._process.pid)
            if self._process.poll() is None and alive(command):
                family.add(command)
        match part:
            case "all":
                return family
            case "command":
                return {process for process in family if process.pid == self._process.pid}
            case "jvm":
                return {process for process in family if _named(process, "java")}
            case "all but jvm":
                return {process for process in family if not _named(process, "java")}

    def kill(self, part: Part) -> set[psutil.Process]:
        """SIGKILL to a part, all of it at one moment; the other processes that are left, which must end."""
        killed = self._stopped(part)
        for process in killed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if part != "jvm" and self._process is not None:
            self._process.wait()
        if left := wait_gone(killed, GONE_S):
            raise PipelineFailed(f"processes outlived SIGKILL: {sorted(p.pid for p in left)}")
        return self.processes("all")

    def pause(self, part: Part) -> set[psutil.Process]:
        """SIGSTOP to a part; what was stopped."""
        return self._stopped(part)

    def stop(self) -> None:
        """SIGTERM to the command, and wait for its end. Raises `PipelineFailed` where it does not end."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise PipelineFailed(f"the command runs on {STOP_S:.0f} s after SIGTERM") from None

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill("all")

    def _stopped(self, part: Part) -> set[psutil.Process]:
        stopped: set[psutil.Process] = set()
        # What one of them starts before it is stopped itself is stopped as well.
        while more := self.processes(part) - stopped:
            for process in more:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped |= more
        return stopped


def go_on(processes: set[psutil.Process]) -> None:
    """SIGCONT to each that still is the process it was."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name
    except psutil.Error:
        return False
