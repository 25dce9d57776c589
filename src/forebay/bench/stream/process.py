"""The processes of a measured pipeline: `forebay run`, and its engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psutil

from forebay.bench.resources import process_use
from forebay.bench.sampling import Source, engine_signals
from forebay.engine.launch import Replicas, local_replicas
from forebay.errors import LaunchError, SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.processes import (
    descendants,
    kill,
    module_command,
    parent_death_signal,
    session_members,
    wait_gone,
)
from forebay.settings import Settings, read_secret
from forebay.untrusted_text import replace_controls

GONE_S = 30.0
STOP_S = 60.0
POLL_S = 0.05
MAX_DETAIL_CHARS = 1500


class RunProcess:
    """Starts one pipeline file, repeatedly; a context manager that ends all its processes.

    Output is logged to `folder/run-N.log`. Killing blocks until the process is gone. The kernel ends the
    command with the thread that entered the block.
    """

    def __init__(
        self, pipeline: Path, engine: tuple[str, ...], folder: Path, options: tuple[str, ...] = ()
    ) -> None:
        urls = [word for url in engine for word in ("--engine", url)]
        self._command = module_command("forebay", "run", str(pipeline), *urls, *options)
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
            raise LaunchError(f"the pipeline ended with status {self._process.poll()}: {self.output()}")

    def output(self) -> str:
        with suppress(OSError):
            return replace_controls(self._log.read_text(errors="replace")[-MAX_DETAIL_CHARS:].strip())
        return ""

    def kill_jvm(self) -> None:
        """Kill the JVM, waiting for one that is being started; the command starts another."""
        until_s = time.monotonic() + GONE_S
        while not (found := {each for each in session_members(self.pid) if _is_java(each)}):
            self.check()
            if time.monotonic() > until_s:
                raise LaunchError(f"no JVM to kill; output of the run: {self.output()}")
            time.sleep(POLL_S)
        kill(found)
        wait_gone(found, GONE_S)

    def kill_command(self) -> None:
        assert self._process is not None
        left = {process for process in session_members(self.pid) if process.pid != self.pid}
        self._process.kill()
        self._process.wait()
        wait_gone(left, GONE_S)

    def jvm(self) -> int | None:
        ages = {process.pid: _born_s(process) for process in session_members(self.pid) if _is_java(process)}
        # A younger one makes a class archive.
        return min(ages, key=lambda pid: ages[pid], default=None)

    def stop(self) -> None:
        """End the run as Ctrl-C does; kill the rest after a minute."""
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


def starts_engine(spec: PipelineSpec, given: Sequence[str]) -> bool:
    return spec.asks_model and not given and spec.engine.replicas() is None


LISTENING_S = 3.0
HERE = ("127.0.0.1", "localhost", "::1")


class Engines:
    """The engine during a block: `given`, else the file's, else a local one started here (`ours`).

    Entering raises `LaunchError` if nothing listens at any URL, unless it starts `later`.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        given: tuple[str, ...],
        settings: Settings,
        *,
        later: bool = False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._later = later
        self.urls = tuple(given)
        self._settings = settings
        self._note = note
        self._opened = ExitStack()
        self.ours: Replicas | None = None
        self.processes: dict[str, int] = {}
        self._used: dict[int, float] = {}

    def __enter__(self) -> Engines:
        if starts_engine(self._spec, self.urls):
            self._note("starting the local engine")
            self.ours = self._opened.enter_context(local_replicas(settings=self._settings))
            self.urls = tuple(self.ours)
        else:
            if self._spec.asks_model and not self.urls:
                self.urls = tuple(self._spec.engine.url)
            # Refuse an unusable URL before the pipeline starts.
            self.signals()
            if self.urls and not self._later:
                check_listening(self.urls)
        self._found()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def signals(self) -> list[Source]:
        secret = self._spec.engine.secret()
        key = None if secret is None else read_secret(secret)
        try:
            return engine_signals(self.urls, api_key=key)
        except SettingError as error:
            raise SettingError(f"engine.url: {error}") from None

    def used_s(self) -> float:
        """Processor seconds since the last call of local replicas that this process did not start."""
        used: dict[int, float] = {}
        # Processes that this one started count as its own.
        own = {os.getpid(), *(child.pid for child in descendants(os.getpid()))}
        for pid in set(self.processes.values()) - own:
            for each in (pid, *(child.pid for child in descendants(pid))):
                try:
                    used[each] = process_use(each).processor_s
                except LaunchError:
                    continue
        passed_s = sum(now_s - self._used[pid] for pid, now_s in used.items() if pid in self._used)
        self._used = used
        return passed_s

    def kill(self) -> None:
        assert self.ours is not None
        self.ours.kill(0)

    def bring_back(self) -> None:
        """Restart it at its address; blocks until it answers."""
        assert self.ours is not None
        self.ours.restart(0)
        self._found()

    def _found(self) -> None:
        ports = {urlsplit(url).port for url in self.urls if urlsplit(url).hostname in HERE}
        try:
            listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        except psutil.Error:
            return
        pids = sorted({each.pid for each in listening if each.laddr and each.laddr[1] in ports and each.pid})
        self.processes = {f"engine{number or ''}": pid for number, pid in enumerate(pids)}


def check_listening(urls: Sequence[str]) -> None:
    """Raise `LaunchError` if nothing listens at any of `urls`; blocks for at most `LISTENING_S` each."""
    refused = []
    for url in urls:
        parts = urlsplit(url)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            with socket.create_connection((parts.hostname or "", port), LISTENING_S):
                return
        except OSError as error:
            refused.append(f"{parts.hostname}:{parts.port}: {error.strerror or error}")
    raise LaunchError(
        f"no engine listens at {'; '.join(refused)}; start it, or give --engine-later if it comes later"
    )
