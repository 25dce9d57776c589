"""A fake replica: a server that speaks vLLM's protocol, with scripted delays and faults."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable

import orjson

from forebay.errors import LaunchError
from forebay.ports import free_port
from forebay.testing.replica.server import FakeReplica
from forebay.testing.replica.work import WorkReport
from forebay.testing.script import CallReport, ReplicaScript

__all__ = [
    "CallReport",
    "FakeReplica",
    "ReplicaProcess",
    "ReplicaScript",
    "ReplicaThread",
    "WorkReport",
    "fetch_report",
    "fetch_work",
    "refuse",
    "set_speed",
]

START_TIMEOUT_S = 180.0


class ReplicaThread:
    """A fake replica in a thread of this process: a context manager.

    Args:
        script: Its behaviour.
        port: 0: a free one.

    Attributes:
        url: Its address while it runs.

    >>> with ReplicaThread(ReplicaScript(models=("small",))) as replica:
    ...     replica.report().completed
    0
    """

    def __init__(self, script: ReplicaScript | None = None, *, port: int = 0) -> None:
        self._script = script or ReplicaScript()
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-replica", daemon=True)
        self._replica: FakeReplica | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def report(self) -> CallReport:
        """What it has seen so far, as a `CallReport`. Blocks for at most 10 s."""
        return fetch_report(self.url)

    def __enter__(self) -> ReplicaThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._replica is not None:
            asyncio.run_coroutine_threadsafe(self._replica.stop(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()

    async def _start(self) -> None:
        self._replica = FakeReplica(self._script, port=self.port)
        await self._replica.start()
        self.port = self._replica.port


class ReplicaProcess:
    """A fake replica in its own process, to be killed and restarted: a context manager.

    After `kill` or `stop` it can be started again, on the same port and without memory of earlier calls. The
    process ends with the process that started it.

    Args:
        script: Its behaviour.
        port: 0: a free one.

    Attributes:
        url: Its address, once it has been started.
        pid: Its process id; None while it is not running.

    >>> with ReplicaProcess(ReplicaScript(models=("small",))) as replica:
    ...     replica.kill()
    ...     replica.start()
    ...     replica.report().completed
    0
    """

    def __init__(self, script: ReplicaScript | None = None, *, port: int = 0) -> None:
        self._script = script or ReplicaScript()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def report(self) -> CallReport:
        """What it has seen so far, as a `CallReport`. Blocks for at most 10 s."""
        return fetch_report(self.url)

    def start(self) -> None:
        """Start it and block until it listens. Raises `LaunchError` after three minutes."""
        if self._process is not None:
            raise LaunchError(f"the fake replica at {self.url} is running; stop it first")
        # A port that it can reuse: not one that the kernel gives to outgoing connections in the meantime,
        # such as one to the dead replica.
        port = self.port or free_port()
        command = [sys.executable, "-m", "forebay.testing.replica", "--port", str(port)]
        command += ["--script", "-", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # By pipe, because any user of the machine can read arguments, and it may contain a key.
        self._process.stdin.write(self._script.to_json().encode())
        self._process.stdin.close()
        ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line.startswith(b"http://"):
            self.kill()
            raise LaunchError(f"the fake replica did not start on port {port}; see its standard error")
        self.port = int(line.rsplit(b":", 1)[1])

    def stop(self) -> None:
        """End it with SIGTERM and wait."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End it with SIGKILL and wait."""
        self._end(subprocess.Popen.kill)

    def __enter__(self) -> ReplicaProcess:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            how(process)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def fetch_report(url: str) -> CallReport:
    return CallReport(**orjson.loads(_call(f"{url}/_calls")))


def fetch_work(url: str) -> WorkReport:
    return WorkReport(**orjson.loads(_call(f"{url}/_work")))


def set_speed(url: str, speed: float) -> None:
    """Change the speed of the fake replica at `url`, as a factor of its script's."""
    _call(f"{url}/_speed", str(speed))


def refuse(url: str, seconds: float) -> None:
    """Make the fake replica at `url` answer with 429 for `seconds`."""
    _call(f"{url}/_refuse", str(seconds))


def _call(url: str, text: str | None = None) -> bytes:
    """The answer; the environment's proxies are not used."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(url, data=None if text is None else text.encode(), timeout=10) as answer:
        body: bytes = answer.read()
    return body


def exit_with_parent(parent: int, *, poll_s: float = 0.5) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(poll_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
