"""`forebay run` in its own session, to be killed in whole or in part."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from forebay.errors import PipelineFailed
from forebay.processes import alive, kill, session_members, wait_gone

GONE_S = 30.0
FLINK_MODULE = "forebay.pipeline.flink_main"


class PipelineProcess:
    """Starts one pipeline file, once or again; a context manager that kills everything at the end.

    Output goes to `work/run-N.log`. `pipeline` (the file), `home`, `environment` and `options` may change
    before a start. Methods that kill use SIGKILL and block until the processes are gone; they raise
    `PipelineFailed` if they stay.
    """

    def __init__(self, pipeline: Path, engine_url: str, work: Path) -> None:
        self.pipeline = pipeline
        self.home = work / "home"
        self.environment: Mapping[str, str] = {}
        self.options: Sequence[str] = ()
        self._engine_url = engine_url
        self._work = work
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        command = ["run", str(self.pipeline), "--engine", self._engine_url, *self.options]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forebay", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, "FOREBAY_HOME": str(self.home)},
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        """Log of the latest start."""
        return self._work / f"run-{self.starts}.log"

    def status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def said(self) -> str:
        """The end of the latest log."""
        return self.log.read_text(errors="replace")[-2000:].strip()

    def kill_all(self) -> None:
        """Kill every process of the session."""
        if self._process is None:
            return
        # The group may have ended while other processes of the session live.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        left = session_members(self._process.pid)
        while left:
            kill(left)
            if wait_gone(left, GONE_S):
                raise PipelineFailed(f"processes outlived SIGKILL: {sorted(p.pid for p in left)}")
            left = session_members(self._process.pid)

    def kill_command(self) -> set[psutil.Process]:
        """Kill only the command; returns its orphans, which must end by themselves."""
        assert self._process is not None
        orphans = self._others()
        self._process.kill()
        self._process.wait()
        return orphans

    def pause(self, *, flink: bool = False, jvm: bool = False) -> None:
        """SIGSTOP the command; optionally the process that holds Flink and guards its JVM, and the JVM."""
        self._signal(signal.SIGSTOP, flink=flink, jvm=jvm)

    def unpause(self, *, flink: bool = False, jvm: bool = False) -> None:
        """SIGCONT them, the JVM first, which the scheduler may do as well."""
        self._signal(signal.SIGCONT, flink=flink, jvm=jvm)

    def _signal(self, number: signal.Signals, *, flink: bool, jvm: bool) -> None:
        assert self._process is not None
        others = self._others()
        for process in others:
            if jvm and process.name() == "java":
                process.send_signal(number)
        for process in others:
            if flink and FLINK_MODULE in _command_line(process):
                process.send_signal(number)
        self._process.send_signal(number)

    def has_jvm(self) -> bool:
        return any(process.name() == "java" for process in self._others())

    def kill_jvm(self) -> None:
        """Kill only the JVM; the command starts another."""
        self._kill_one(lambda process: process.name() == "java")

    def kill_flink(self) -> None:
        """Kill the process that holds the JVM, which must end with it; the command starts others."""
        jvm = {process for process in self._others() if process.name() == "java"}
        self._kill_one(lambda process: FLINK_MODULE in _command_line(process))
        expect_gone(jvm)

    def _kill_one(self, is_it: Callable[[psutil.Process], bool]) -> None:
        found = {process for process in self._others() if is_it(process)}
        if not found:
            raise PipelineFailed(f"the process to kill does not run; the run's output: {self.said()}")
        kill(found)
        expect_gone(found)

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill_all()

    def _others(self) -> set[psutil.Process]:
        assert self._process is not None
        return {process for process in session_members(self._process.pid) if process.pid != self._process.pid}


def expect_gone(processes: set[psutil.Process]) -> None:
    """Block until all have ended; raises `PipelineFailed` after half a minute."""
    if left := wait_gone(processes, GONE_S):
        raise PipelineFailed(f"processes outlived the command: {_names(left)}")


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if alive(process) else []
    except psutil.Error:
        return []


def _names(processes: set[psutil.Process]) -> list[str]:
    return [" ".join(_command_line(process)[:3]) or str(process.pid) for process in processes]
