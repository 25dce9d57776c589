"""`forebay run` in its own session: started, killed in whole or in part, and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from forebay.errors import LaunchError
from forebay.flink.class_archive import LISTS_CLASSES
from forebay.processes import kill, module_command, parent_death_signal, session_members, wait_gone
from forebay.untrusted_text import replace_controls

GONE_S = 30.0
STOP_S = 60.0
POLL_S = 0.05
ARCHIVE_S = 180.0
"""The longest wait for the class archive that a machine's first run makes."""
MAX_SAID_CHARS = 1500


class RunProcess:
    """Starts one pipeline file, once or again. A context manager: it ends every process that it started.

    Each start's output goes to `folder/run-N.log`. Methods that kill use SIGKILL and block until the process
    is gone. Enter it on a thread that lives as long: the kernel ends the command with that thread.
    """

    def __init__(self, pipeline: Path, engine: tuple[str, ...], folder: Path) -> None:
        urls = [word for url in engine for word in ("--engine", url)]
        self._command = module_command("forebay", "run", str(pipeline), *urls)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _log(self) -> Path:
        return self._folder / f"run-{self.starts}.log"

    def check(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise LaunchError(f"the pipeline ended with status {self._process.poll()}: {self.said()}")

    def said(self) -> str:
        """The end of the latest start's output."""
        with suppress(OSError):
            return replace_controls(self._log.read_text(errors="replace")[-MAX_SAID_CHARS:].strip())
        return ""

    def kill_jvm(self) -> None:
        """Kill the JVM with all tasks, waiting for one that is being started; the command starts another."""
        until_s = time.monotonic() + GONE_S
        while not (found := {each for each in session_members(self.pid) if _is_java(each)}):
            self.check()
            if time.monotonic() > until_s:
                raise LaunchError(f"no JVM to kill; output of the run: {self.said()}")
            time.sleep(POLL_S)
        kill(found)
        wait_gone(found, GONE_S)

    def kill_command(self) -> None:
        """Kill the command; its processes end by themselves."""
        assert self._process is not None
        left = {process for process in session_members(self.pid) if process.pid != self.pid}
        self._process.kill()
        self._process.wait()
        wait_gone(left, GONE_S)

    def jvm(self) -> int | None:
        """The process number of the job's JVM, or None."""
        ages = {process.pid: _born_s(process) for process in session_members(self.pid) if _is_java(process)}
        # A younger one makes a class archive.
        return min(ages, key=lambda pid: ages[pid], default=None)

    def await_archive(self) -> bool:
        """On a machine's first run: block until the JVM's class archive is made, for at most `ARCHIVE_S`.
        False if none is made."""
        jvm = self.jvm()
        if jvm is None or not any(LISTS_CLASSES in word for word in _words(jvm)):
            return False
        until_s, seen = time.monotonic() + ARCHIVE_S, False
        while time.monotonic() < until_s:
            self.check()
            making = sum(map(_is_java, session_members(self.pid))) > 1
            if seen and not making:
                break
            seen = seen or making
            time.sleep(POLL_S)
        return True

    def stop(self) -> None:
        """End the run as Ctrl-C does; kill what is left after a minute."""
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_S)
        finally:
            # Also after a second Ctrl-C: nothing may write into the folder any more.
            self._kill_all()

    def _kill_all(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        left = session_members(self._process.pid)
        while left:
            kill(left)
            wait_gone(left, GONE_S)
            left = session_members(self._process.pid)

    def __enter__(self) -> RunProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False


def _born_s(process: psutil.Process) -> float:
    try:
        return process.create_time()
    except psutil.Error:
        return float("inf")


def _words(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []
