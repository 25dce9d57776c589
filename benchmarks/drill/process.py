"""`forebay run` with all its processes: killed, paused and stopped in part or in whole.

Parts are found by what the system shows (process tree, session, names), without knowledge of a run's
structure.
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
    """Starts one command, once or again; a context manager that ends all its processes.

    Output goes to `logs/run-N.log`, the document of `--json` to `logs/report-N.json`.
    """

    def __init__(self, command: Sequence[str], logs: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self._command = list(command)
        self._logs = logs
        self._environment = dict(environment)
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
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
        """The end of the latest start's output."""
        return self.log.read_text(errors="replace")[-1500:].strip() if self.log.exists() else ""

    def texts(self) -> Iterator[str]:
        """Output and reports of all starts."""
        for path in sorted(self._logs.iterdir()):
            yield path.read_text(errors="replace")

    def report(self) -> Mapping[str, Any] | None:
        """The document of the latest start's `--json`; None if it wrote none."""
        path = self._logs / f"report-{self.starts}.json"
        found = orjson.loads(path.read_bytes()) if path.is_file() and path.stat().st_size else None
        return found if isinstance(found, dict) else None

    def status(self) -> int | None:
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
        """SIGKILL a part at once; returns the remaining processes, which must end by themselves."""
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
        """SIGSTOP a part; returns the paused processes."""
        return self._stopped(part)

    def stop(self) -> None:
        """SIGTERM the command and wait. Raises `PipelineFailed` if it does not end."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise PipelineFailed(f"the command still runs {STOP_S:.0f} s after SIGTERM") from None

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill("all")

    def _stopped(self, part: Part) -> set[psutil.Process]:
        stopped: set[psutil.Process] = set()
        # Repeat: a process may start another before it is paused.
        while more := self.processes(part) - stopped:
            for process in more:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped |= more
        return stopped


def go_on(processes: set[psutil.Process]) -> None:
    """SIGCONT each process that still exists."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _named(process: psutil.Process, name: str) -> bool:
    try:
        return process.name() == name
    except psutil.Error:
        return False
