"""A command with all its processes: started in its own session, killed, paused, stopped in part or
in whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
from typing_extensions import Self

from forebay.errors import LaunchError, PipelineFailed
from forebay.processes import alive, descendants, session_members, wait_gone

GONE_S = 30.0
STOP_S = 120.0
FLINK_MODULE = "forebay.pipeline.flink_main"
"""Of the process that holds Flink and guards its JVM."""
Part = Literal["all", "command", "flink", "jvm", "all but jvm"]


def run_module(module: str, order: str, *, timeout_s: float) -> str:
    command = [sys.executable, "-m", module]
    try:
        done = subprocess.run(
            command, input=order, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{module} did not finish within {timeout_s:g} s") from None
    if done.returncode:
        raise LaunchError(f"{module} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip().splitlines()[-1]


class RunProcess:
    """Starts one command, once or again; a context manager that ends all its processes."""

    def __init__(
        self, command: Sequence[str], logs: Path, environment: Mapping[str, str], cwd: Path | None = None
    ) -> None:
        self._command = command
        self._logs = logs
        self._cwd = cwd
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self._logs.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.variables(),
                cwd=self._cwd,
                start_new_session=True,
            )

    def command(self) -> Sequence[str]:
        return self._command

    def variables(self) -> dict[str, str]:
        return dict(self.environment)

    @property
    def log(self) -> Path:
        return self._logs / f"run-{self.starts}.log"

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-2000:].strip() if self.log.exists() else ""

    def status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def processes(self, part: Part = "all") -> set[psutil.Process]:
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
            case "flink":
                return {process for process in family if FLINK_MODULE in command_line(process)}
            case "jvm":
                return {process for process in family if _is_java(process)}
            case "all but jvm":
                return {process for process in family if not _is_java(process)}

    def suspend(self, part: Part) -> set[psutil.Process]:
        """SIGSTOP a part; returns the paused processes."""
        stopped: set[psutil.Process] = set()
        # Repeat: a process may start another before it is paused.
        while more := self.processes(part) - stopped:
            for process in more:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            stopped |= more
        return stopped

    def kill(self, part: Part = "all") -> set[psutil.Process]:
        """SIGKILL a part at once; returns the remaining processes, which must end by themselves."""
        # Paused first: orphans would get another parent.
        killed = self.suspend(part)
        for process in killed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if part not in {"jvm", "flink"} and self._process is not None:
            self._process.wait()
        expect_gone(killed, "SIGKILL")
        return self.processes()

    def stop(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise PipelineFailed(f"the command still runs {STOP_S:.0f} s after SIGTERM") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class PipelineProcess(RunProcess):
    def __init__(self, pipeline: Path, engine_url: str, work: Path) -> None:
        super().__init__((), work, {})
        self.pipeline = pipeline
        self.home = work / "home"
        self.options: Sequence[str] = ()
        self._engine_url = engine_url

    def command(self) -> Sequence[str]:
        words = ("run", str(self.pipeline), "--engine", self._engine_url, *self.options)
        return (sys.executable, "-m", "forebay", *words)

    def variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment, "FOREBAY_HOME": str(self.home)}

    def pause(self, *more: Part) -> None:
        for part in (*more, "command"):
            self.suspend(part)

    def unpause(self, *more: Part) -> None:
        """SIGCONT them, the first of `more` first, which the scheduler may do as well."""
        for part in (*more, "command"):
            go_on(self.processes(part))

    def kill_part(self, part: Part) -> None:
        """Kill the JVM, or the process that holds it, with which it must end; the command starts
        others."""
        found, jvm = self.processes(part), self.processes("jvm")
        if not found:
            raise PipelineFailed(f"the process to kill does not run; the run's output: {self.output()}")
        self.kill(part)
        expect_gone(jvm)


def go_on(processes: Iterable[psutil.Process]) -> None:
    """SIGCONT each process that still exists."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def expect_gone(processes: set[psutil.Process], what: str = "the command") -> None:
    """Block until all have ended; raises `PipelineFailed` after half a minute."""
    if left := wait_gone(processes, GONE_S):
        names = [" ".join(command_line(process)[:3]) or str(process.pid) for process in left]
        raise PipelineFailed(f"processes outlived {what}: {names}")


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if alive(process) else []
    except psutil.Error:
        return []


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False
