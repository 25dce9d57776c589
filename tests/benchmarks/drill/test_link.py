"""A connection that is cut and stalled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from benchmarks.drill.link import Link

from forebay.testing.waiting import wait_until


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


def connect(link: Link) -> socket.socket:
    return socket.create_connection(("127.0.0.1", link.port), timeout=60)


def test_everything_passes(echo: int) -> None:
    with Link(echo) as link, connect(link) as here:
        here.sendall(b"hello")
        assert here.recv(100) == b"hello"


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
