"""A connection that is cut, a disk that is full, and a clock that is set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.drill.link import Link, Shim, compiler

from forebay.testing.waiting import wait_until


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=60)


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of an echo server."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    there, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=give_back, args=(there,), daemon=True).start()

        def give_back(there: socket.socket) -> None:
            with there:
                try:
                    while data := there.recv(1000):
                        there.sendall(data)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def test_cut_refuses_connections_until_it_is_restored(echo: int) -> None:
    with Link(echo) as link, connect(link) as here:
        here.sendall(b"hello")
        assert here.recv(100) == b"hello"
        link.cut()
        with pytest.raises(ConnectionResetError):
            here.recv(100)
        # The reset may come as early as while the connection is made.
        with pytest.raises(ConnectionResetError), connect(link) as refused:
            refused.recv(100)
        link.restore()
        with connect(link) as again:
            again.sendall(b"hello")
            assert again.recv(100) == b"hello"


def test_a_stall_holds_everything_until_it_is_restored(echo: int) -> None:
    with Link(echo) as link, connect(link) as here:
        here.sendall(b"1")
        assert here.recv(1) == b"1"
        link.stall()
        here.sendall(b"2")
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(here.recv(1)))
        reader.start()
        # A stall cannot be awaited; another link shows that the loop has run.
        with Link(echo) as other, connect(other) as there:
            there.sendall(b"x")
            assert there.recv(1) == b"x"
        assert got == []
        link.restore()
        wait_until(lambda: got == [b"2"])
        reader.join()


needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler")


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    (tmp_path / "disk").mkdir()
    return Shim(tmp_path / "shim", tmp_path / "disk")


def run(shim: Shim, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **shim.environment},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_compiler
def test_disk_is_full_only_during_the_fault(shim: Shim, tmp_path: Path) -> None:
    write = "import os, sys; f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY); os.write(f, b'x')"
    on, off = str(tmp_path / "disk" / "file"), str(tmp_path / "file")
    assert run(shim, write, on).returncode == 0
    shim.full(True)
    assert "No space left on device" in run(shim, write, on).stderr
    assert run(shim, write, off).returncode == 0
    shim.full(False)
    assert run(shim, write, on).returncode == 0


@needs_compiler
def test_wall_clock_is_shifted_and_monotonic_time_is_not(shim: Shim) -> None:
    note = "import time; print(time.time(), time.monotonic())"
    shim.step_clock(-7200.0)
    shim.step_clock(10.25)
    before_s, before_mono_s = time.time(), time.monotonic()
    wall_s, mono_s = map(float, run(shim, note).stdout.split())
    assert before_s - 7189.75 <= wall_s <= time.time() - 7189.74
    assert before_mono_s <= mono_s <= time.monotonic()
