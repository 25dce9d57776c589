"""A deployment of Ray Serve in which each replica owns one engine, which routers call.

Needs only Ray and the same version of Forebay.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

import ray
from ray import serve

from forebay.clients.ray import DEPLOYMENT, Ports
from forebay.deploy.drain import DIRECT, drain
from forebay.deploy.ray.stats import replica_metadata, routing_stats

PR_SET_PDEATHSIG = 1
NOTICE_S = 3.0
"""Routers poll twice a second: after this time, none sends to a leaving replica."""
LOOK_S = 0.2
HEALTH_TIMEOUT_S = 5.0
STATS_TIMEOUT_S = 2.0
MAX_METRICS_BYTES = 16 << 20
END_S = 5.0
LINES = 20
MAX_DETAIL_CHARS = 1500


class EngineReplica:
    def __init__(
        self, command: Sequence[str], first_port: int, ports: int, startup_s: float, drain_s: float
    ) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = False
        self._drain_s = drain_s
        self.host = ray.util.get_node_ip_address()
        self.port = Ports(first_port, ports).of(os.getpid())
        places = {"{host}": self.host, "{port}": str(self.port)}
        self._last: deque[str] = deque(maxlen=LINES)
        if self._is_taken():
            raise RuntimeError(
                f"another process listens at {self.url()}: Serve starts the replica again with another port"
            )
        try:
            self._process = subprocess.Popen(
                [_placed(word, places) for word in command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent(),  # noqa: PLW1509 (nothing but one system call)
            )
        except OSError as error:
            raise RuntimeError(f"cannot start the engine: {command[0]}: {error.strerror}") from None
        printing = threading.Thread(target=self._print, name="engine-output", daemon=True)
        printing.start()
        try:
            self._wait_until_healthy(startup_s, printing)
        except BaseException:
            self._stop()
            raise
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def check_health(self) -> None:
        """Called by Serve."""
        if not self._healthy():
            raise RuntimeError(f"the engine at {self.url()} is not healthy")

    def record_replica_metadata(self) -> dict[str, Any]:
        """Called by Serve once, for programs that choose this replica and call its engine themselves."""
        return replica_metadata(self.url(), self._metrics())

    def record_routing_stats(self) -> dict[str, Any]:
        """Called by Serve often, for its router."""
        return routing_stats(self._metrics())

    def __del__(self) -> None:
        """Called by Serve when the replica is removed; may block."""
        if getattr(self, "_process", None) is not None and not self._ends:
            self._ends = True
            drain(self._drain_s, self.port, NOTICE_S, host=self.host)
            self._stop()

    def _wait_until_healthy(self, startup_s: float, printing: threading.Thread) -> None:
        assert self._process is not None
        end_s = time.monotonic() + startup_s
        while True:
            code = self._process.poll()
            if code is not None:
                printing.join(END_S)
                raise RuntimeError(f"the engine ended with {code} before it was healthy: {self._output()}")
            if self._healthy():
                return
            if time.monotonic() > end_s:
                raise RuntimeError(
                    f"the engine was not healthy after {startup_s:g} s (startup_s): {self._output()}"
                )
            time.sleep(LOOK_S)

    def _output(self) -> str:
        return " | ".join(self._last)[-MAX_DETAIL_CHARS:] or "it printed nothing"

    def _is_taken(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), HEALTH_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def _healthy(self) -> bool:
        try:
            with DIRECT.open(f"{self.url()}/health", timeout=HEALTH_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except (OSError, HTTPException, ValueError):
            return False

    def _metrics(self) -> str | None:
        try:
            with DIRECT.open(f"{self.url()}/metrics", timeout=STATS_TIMEOUT_S) as answer:
                return bytes(answer.read(MAX_METRICS_BYTES)).decode("utf-8", "replace")
        except HTTPError:
            return ""
        except (OSError, HTTPException, ValueError):
            return None

    def _print(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(65_536):
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
            self._last.append(line.decode("utf-8", "replace").rstrip()[:500])

    def _watch(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        if not self._ends:
            print(f"the engine at {self.url()} ended with {code}: the replica ends with it", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)

    def _stop(self) -> None:
        self._ends = True
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def application(args: Mapping[str, Any]) -> serve.Application:
    return serve.deployment(name=DEPLOYMENT)(EngineReplica).bind(
        list(args["command"]),
        int(args["first_port"]),
        int(args["ports"]),
        float(args["startup_s"]),
        float(args["drain_s"]),
    )


def _placed(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def _end_with_parent() -> Any:
    """The engine ends with its parent thread, which lives as long as the replica."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask
