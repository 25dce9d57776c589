"""The engine of a measured pipeline: its address, metrics and use of this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from urllib.parse import urlsplit

import psutil

from forebay.bench.engine_signals import EngineSignals
from forebay.bench.processor import process_use
from forebay.engine.launch import Replicas, local_replicas
from forebay.errors import LaunchError, SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.processes import descendants
from forebay.settings import Settings, read_secret


def starts_engine(spec: PipelineSpec, given: Sequence[str]) -> bool:
    """Whether measuring this pipeline starts a local engine: neither `given` nor the file names one."""
    return spec.asks_model and not given and spec.engine.replicas() is None


LISTENING_S = 3.0
HERE = ("127.0.0.1", "localhost", "::1")


class Engines:
    """The engine during a block: `given`, else the file's, else a local one started here (`ours`).

    Entering raises `LaunchError` if nothing listens at any of the URLs, unless the engine comes `later`.
    `urls`: for the command line; empty if the file locates replicas in another way. `processes`: the serving
    processes on this machine, by name.
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

    def signals(self) -> list[Callable[[], Mapping[str, float]]]:
        """A source for each replica; with several, names begin with `engine0_` and so on."""
        secret = self._spec.engine.secret()
        key = None if secret is None else read_secret(secret)
        try:
            each = [EngineSignals.at(url, api_key=key) for url in self.urls]
        except SettingError as error:
            raise SettingError(f"engine.url: {error}") from None
        if len(each) == 1:
            return [each[0]]
        return [_named(f"engine{number}_", source) for number, source in enumerate(each)]

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
        """Start it again at its address; blocks until it answers."""
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


def _named(prefix: str, source: Callable[[], Mapping[str, float]]) -> Callable[[], Mapping[str, float]]:
    return lambda: {prefix + name: value for name, value in source().items()}
