"""Files and ports of a run are private to its user, and it loads no code from the working directory."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.harness.homes import new_home

from forebay.errors import LaunchError
from forebay.flink.rest import PASSWORD, FlinkRest, TlsKeys
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

# One run for all of them.
pytestmark = [pytest.mark.flink, pytest.mark.xdist_group("closed")]

PLANTED = "import pathlib\npathlib.Path({mark!r}).write_text('ran')\nraise ImportError\n"
REFUSALS = (
    b"\x15",
    b"HTTP/1.1 301 Moved Permanently\r\nlocation: https://",
    b"!xsAuthentication error",
    b"!zsorg.apache.flink.api.python.shaded.py4j.Py4JException: Unknown command received",
)
"""A TLS alert, a redirect to TLS, and the gateway's answers to a command and to other input."""
MODULES = ("orjson", "psutil", "queue", "decimal", "sitecustomize", "google")
PIPELINE = """
parallelism: 2
task_managers: {task_managers}
name: p
source: {{type: generator, rate: 50.0}}
prompt: "{{{{ text }}}}"
sink: {{type: jsonl, path: out}}
checkpoint: {{interval_s: 0.5}}
"""


class Attacked:
    """A running pipeline with results, whose working directory was filled by somebody else."""

    def __init__(self, folder: Path, url: str, task_managers: int) -> None:
        self.folder = folder
        self.task_managers = task_managers
        self.planted, self.marks = folder / "planted", folder / "marks"
        self.home = new_home(folder / "home")
        self.planted.mkdir()
        self.marks.mkdir()
        for name in MODULES:
            mark = str(self.marks / name)
            (self.planted / f"{name}.py").write_text(PLANTED.format(mark=mark))
        (folder / "p.yaml").write_text(PIPELINE.format(task_managers=task_managers))
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("forebay"), "run", folder / "p.yaml", "--engine", url],
            cwd=self.planted,
            env={**os.environ, "FOREBAY_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            stderr=(folder / "said").open("wb"),
        )
        wait_until(
            lambda: any((folder / "out").rglob("*.jsonl")) or self.process.poll() is not None,
            describe=(folder / "said").read_text,
        )
        self.parts = [psutil.Process(self.process.pid)]
        self.parts += self.parts[0].children(recursive=True)

    def ports(self) -> dict[int, tuple[str, psutil.Process]]:
        """Ports on which a process of the run listens."""
        found = {}
        for part in self.parts:
            for at in part.net_connections("inet"):
                if at.status == psutil.CONN_LISTEN:
                    found[at.laddr.port] = (at.laddr.ip.removeprefix("::ffff:"), part)
        return found


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def attacked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.01))) as replica:
        run = Attacked(tmp_path_factory.mktemp("attacked"), replica.url, request.param)
        try:
            yield run
        finally:
            run.process.terminate()
            run.process.wait(100)


def test_every_port_is_on_the_loopback_interface(attacked: Attacked) -> None:
    assert {address for address, _ in attacked.ports().values()} == {"127.0.0.1"}


def _said(port: int, words: bytes) -> bytes:
    """The answer to `words`; empty if the connection is closed, or nothing arrives for a second."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(1)
        try:
            connection.sendall(words)
            return connection.recv(1000)
        except (TimeoutError, ConnectionError):
            return b""


def test_no_port_serves_clients_without_a_key(attacked: Attacked) -> None:
    """Flink's REST service (a job, a jar, a page), its blob server, and the gateway to the JVM."""
    asked = {
        "the REST service": b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "the blob server": b"\x00\x01" + b"\x00" * 20,
        "the gateway": b"r\nu\njava\nrj\ne\n",
    }
    for port in attacked.ports():
        for what, words in asked.items():
            answer = _said(port, words)
            assert any(answer.startswith(no) for no in REFUSALS) or answer == b"", (what, answer)


def test_no_port_accepts_a_foreign_certificate(attacked: Attacked) -> None:
    stranger = ssl.create_default_context()
    stranger.check_hostname = False
    stranger.verify_mode = ssl.CERT_NONE
    spoken = 0
    for port in attacked.ports():
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            plain.settimeout(5)
            try:
                with stranger.wrap_socket(plain) as connection:
                    connection.sendall(b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    spoken += connection.recv(1000) != b""
            except (ssl.SSLError, OSError):
                continue
    assert spoken == 0


def test_the_run_itself_has_the_key(attacked: Attacked) -> None:
    keys = TlsKeys(attacked.home / "run" / "flink" / "keys")
    served = []
    for port in attacked.ports():
        with suppress(LaunchError):
            served += FlinkRest(f"https://localhost:{port}", keys).json("/jobs")["jobs"]
    assert [job["status"] for job in served] == ["RUNNING"]


def test_nothing_is_imported_from_the_working_directory(attacked: Attacked) -> None:
    assert list(attacked.marks.iterdir()) == []
    jvms = [part for part in attacked.parts if part.name() == "java"]
    assert len(jvms) == (1 if attacked.task_managers == 1 else 1 + attacked.task_managers)
    for java in jvms:
        line = java.cmdline()
        assert "" not in line[line.index("-cp") + 1].split(os.pathsep)
        assert Path(java.cwd()) != attacked.planted


def test_password_of_the_key_is_only_next_to_the_key(attacked: Attacked) -> None:
    logs = attacked.home / "run" / "flink"
    password = (logs / "keys" / PASSWORD).read_text()
    for part in attacked.parts:
        assert password not in " ".join((*part.cmdline(), *part.environ().values()))
    files = [path for path in attacked.folder.rglob("*") if logs / "keys" not in path.parents]
    assert any(path.suffix == ".log" for path in files)
    for path in files:
        # While it runs, Flink deletes checkpoints.
        with suppress(FileNotFoundError, IsADirectoryError):
            assert password.encode() not in path.read_bytes(), path


def test_files_of_a_run_are_private(attacked: Attacked) -> None:
    """Results and state by file mode, logs and keys by that of their folder."""
    made = [*(attacked.folder / "out").rglob("*"), *(attacked.folder / ".forebay").rglob("*")]
    assert any(path.is_file() for path in made)
    for path in made:
        if path.exists():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    for folder in (attacked.home / "run" / "flink", attacked.home / "run" / "flink" / "keys"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
