"""A Ray cluster on this machine, reachable only from this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from forebay.errors import LaunchError
from forebay.ports import free_port
from forebay.settings import load_settings
from forebay.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
LOOPBACK = "127.0.0.2"
"""Ray rejects 127.0.0.1 and uses the machine's outer address instead."""
OTHER_LOOPBACK = "127.0.0.3"
"""Address of the second node."""
OTHER = """
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Other:
    pass


app = Other.bind()
"""


def find_ray() -> Path | None:
    own = load_settings().home / "ray" / "bin" / "ray"
    found = str(own) if own.exists() else shutil.which("ray")
    return None if found is None else Path(found)


class RayCluster:
    """A cluster started by `ray`, a program in an environment with Ray Serve: a context manager."""

    def __init__(self, ray: Path, cpus: int = 8, environment: Mapping[str, str] | None = None) -> None:
        self._ray = ray
        self._cpus = cpus
        self._own = dict(environment or {})
        self._token_before: str | None = None
        self._heads = 0
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        # Short, because Ray puts sockets there.
        self._folder = Path(tempfile.mkdtemp(prefix="fr"))
        self.address = f"http://127.0.0.1:{free_port()}"
        self._gcs_port = free_port()
        self.token = secrets.token_hex(16)
        self.agent_port = free_port()
        """Where the head reports its health."""

    def fleet(self, name: str) -> dict[str, Any]:
        """A fleet file with one scripted replica."""
        module = [sys.executable, "-m", "forebay.testing.replica", "--model", "{model}"]
        return {
            "name": name,
            "model": "small",
            "command": [*module, "--host", "{host}", "--port", "{port}"],
            "cpu": 0.1,
            "startup_s": 180,
            "drain_s": 20,
            "health_period_s": 1,
        }

    @contextlib.contextmanager
    def program(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        python = self._ray.parent / "python"
        environment = self._environment() | {"RAY_ADDRESS": f"{LOOPBACK}:{self._gcs_port}"}
        with (self._folder / "program").open("ab") as log:
            process = subprocess.Popen(
                [str(python), *words],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def output(self) -> str:
        return (self._folder / "program").read_text(errors="replace")[-2000:]

    def warned(self) -> str:
        """The last warnings of Serve's controller."""
        logs = sorted(self._folder.glob("t*/session_2*/logs/serve/controller_*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return " | ".join(line for line in lines if line.startswith(("WARNING", "ERROR")))[-1000:]

    def _environment(self) -> dict[str, str]:
        given = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT, self._folder))),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            **self._own,
        }
        given.pop("RAY_ADDRESS", None)
        return given

    def __enter__(self) -> RayCluster:
        (self._folder / "other_application.py").write_text(OTHER)
        self._token_before = os.environ.get("RAY_AUTH_TOKEN")
        os.environ["RAY_AUTH_TOKEN"] = self.token
        try:
            self.start_head()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        if self._token_before is not None:
            os.environ["RAY_AUTH_TOKEN"] = self._token_before
        for address in list(self._nodes):
            self._kill(address)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start_head(self) -> None:
        # Like on another machine: Ray mistakes the leftovers of a head in its folder for a running one.
        self._heads += 1
        words = ["--head", "--include-dashboard=true", f"--port={self._gcs_port}"]
        words += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self.address.rsplit(':', 1)[1]}"]
        words.append(f"--dashboard-agent-listen-port={self.agent_port}")
        words += [f"--num-cpus={self._cpus}", f"--temp-dir={self._folder}/t{self._heads}"]
        self._start(LOOPBACK, words)
        wait_until(self._is_up, describe=self._log)

    def kill_head(self) -> None:
        self._kill(LOOPBACK)

    def start_node(self, cpus: int) -> None:
        gcs = f"{LOOPBACK}:{self._gcs_port}"
        agent = f"--dashboard-agent-listen-port={free_port()}"
        self._start(OTHER_LOOPBACK, [f"--address={gcs}", f"--num-cpus={cpus}", agent])

    def node_has_ended(self) -> bool:
        """Whether the second node ended by itself, because it found no head for a long time."""
        return self._nodes[OTHER_LOOPBACK].poll() is not None

    def freeze_node(self) -> None:
        """Pause the second node, as if the network had lost it."""
        for each in self._processes(OTHER_LOOPBACK):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()

    def kill_node(self) -> None:
        self._kill(OTHER_LOOPBACK)

    def _start(self, address: str, words: Sequence[str]) -> None:
        names = ("dashboard-agent-grpc-port", "metrics-export-port", "runtime-env-agent-port")
        ports = [f"--{name}={free_port()}" for name in names]
        command = [str(self._ray), "start", "--block", f"--node-ip-address={address}", *words, *ports]
        command.append(f"--object-store-memory={100 << 20}")
        with (self._folder / f"log-{address}").open("ab") as log:
            self._nodes[address] = subprocess.Popen(
                command, env=self._environment(), stdout=log, stderr=log, cwd=self._folder
            )

    def _kill(self, address: str) -> None:
        # SIGKILL: after SIGTERM, Ray waits half a minute for workers.
        for each in self._processes(address):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._nodes.pop(address).wait()

    def _processes(self, address: str) -> list[psutil.Process]:
        try:
            found = psutil.Process(self._nodes[address].pid)
            return [*found.children(recursive=True), found]
        except psutil.NoSuchProcess:
            return []

    def _is_up(self) -> bool:
        if self._nodes[LOOPBACK].poll() is not None:
            raise LaunchError(f"the Ray cluster has ended: {self._log()}")
        try:
            with urllib.request.urlopen(self.request(), timeout=30):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def request(self, data: bytes | None = None) -> urllib.request.Request:
        """A request for Serve's applications at the dashboard, or to replace them."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url, method = f"{self.address}/api/serve/applications/", "GET" if data is None else "PUT"
        return urllib.request.Request(url, data, headers, method=method)

    def _log(self) -> str:
        return (self._folder / f"log-{LOOPBACK}").read_text(errors="replace")[-2000:]
