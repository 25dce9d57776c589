"""A scripted server instead of vLLM, and owners of replicas that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from forebay.engine.launch import ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch

SERVER = """
import http.server, pathlib, signal, subprocess, sys

port, behaviour, notes = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
print("stand-in started", flush=True)
if behaviour == "dies":
    sys.exit("no such model: nonsense")
# Like vLLM's workers: a child; one in a session of its own; and one that is deaf to SIGTERM.
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
for number, code in enumerate(["import time; time.sleep(600)", "import time; time.sleep(600)", deaf]):
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        start_new_session=number == 1,
        stdout=subprocess.PIPE if number == 2 else None,
    )
    if number == 2:
        child.stdout.readline()
    with notes.open("a") as file:
        file.write(f"{child.pid}\\n")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *arguments):
        pass

server = http.server.HTTPServer(("127.0.0.1", port), Handler)
with notes.open("a") as file:
    file.write("ready\\n")
if behaviour == "never healthy":
    signal.pause()
server.serve_forever()
"""

OWNER = """
import os, sys
from pathlib import Path
from forebay.engine.launch import ReplicaRegistry, Replicas
from forebay.engine.launch.spec import EngineLaunch

directory, behaviour, act = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def launch(port, cores):
    notes = directory / f"notes-{port}"
    words = (sys.executable, str(directory / "server.py"), str(port), behaviour, str(notes))
    return EngineLaunch(words, {}, cores)

registry = ReplicaRegistry(directory / "replicas.json")
with Replicas(registry, launch, model="stand-in", grace_s=1.0) as replicas:
    replicas.start([(), ()], port_base=int(sys.argv[4]))
    if act == "keep":
        replicas.keep()
    elif act == "leave an heir":
        if os.fork() == 0:
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), 9)
    else:
        print("started", flush=True)
        sys.stdin.read()
"""

TIMEOUT_S = 180.0


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


@dataclass(frozen=True)
class StandIn:
    """One test's folder with the scripted server, its registry and its servers' records."""

    directory: Path
    port_base: int

    @property
    def registry(self) -> ReplicaRegistry:
        return ReplicaRegistry(self.directory / "replicas.json")

    def replicas(self, behaviour: str = "healthy", grace_s: float = 1.0) -> Replicas:
        def launch(port: int, cores: tuple[int, ...]) -> EngineLaunch:
            server, notes = self.directory / "server.py", self.directory / f"notes-{port}"
            return EngineLaunch((sys.executable, str(server), str(port), behaviour, str(notes)), {}, cores)

        return Replicas(self.registry, launch, model="stand-in", grace_s=grace_s)

    def owner(self, behaviour: str, act: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", OWNER, str(self.directory), behaviour, act, str(self.port_base)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def children(self) -> list[psutil.Process]:
        lines = [line for path in self.directory.glob("notes-*") for line in path.read_text().split()]
        return [process for line in lines if line.isdigit() if (process := running(int(line))) is not None]

    def ready(self) -> int:
        return sum("ready" in path.read_text() for path in self.directory.glob("notes-*"))

    def processes(self) -> list[psutil.Process]:
        """All running processes of this test: supervisors, servers, children."""
        mine = str(self.directory)
        return self.children() + [
            process
            for process in psutil.process_iter()
            if process.pid != os.getpid() and mine in " ".join(command_line(process))
            if running(process.pid) is not None
        ]


def running(pid: int) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.Error:
        return None


def command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    (tmp_path / "server.py").write_text(SERVER)
    # Distinct from each other, from real replicas' and from other servers' ports (`operators.ports`), below
    # the system's ports for outgoing connections.
    made = StandIn(tmp_path, 30_000 + os.getpid() % 27 * 100)
    yield made
    left = made.processes()
    for process in left:
        process.kill()
    assert not left, "the test left processes behind"
