"""Another user of this machine cannot reach the JVM's gateway; Java objects are released without blocking."""

from __future__ import annotations

import gc
import os
import signal
import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import py4j.java_gateway
import pytest
from py4j.java_gateway import GatewayParameters
from py4j.protocol import Py4JNetworkError
from pyflink.java_gateway import get_gateway

from forebay.flink import sealed_gateway
from forebay.flink.jvm import jvm_process, launch_jvm, start_jvm
from forebay.flink.sealed_gateway import SealedClient, release_in_background
from forebay.testing.waiting import wait_until

LINE = b"x" * (1 << 20)


@pytest.mark.flink
def test_stranger_is_cut_off_once_the_owner_is_connected(tmp_path: Path) -> None:
    jvm = launch_jvm(tmp_path, heap_mb=256)
    try:
        port, _ = jvm._answer.result(60)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(60)
            stranger.sendall(LINE)
            gateway = jvm.open_gateway()
            with suppress(ConnectionError):
                assert stranger.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        # More calls at once than there are connections.
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda n: gateway.jvm.java.lang.Math.abs(-n), range(200))
            assert list(found) == list(range(200))
        listens = [
            each
            for each in psutil.Process(jvm.process.pid).net_connections("all")
            if each.status == psutil.CONN_LISTEN
        ]
        assert listens == []
    finally:
        jvm.end()


def test_call_without_a_free_connection_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_gateway, "WAIT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = SealedClient(GatewayParameters(port=server.getsockname()[1]), 1)
        taken = client._get_connection()
        with pytest.raises(Py4JNetworkError, match="no connection to the JVM was free"):
            client._get_connection()
        client._give_back_connection(taken)
        assert client._get_connection() is taken
        taken.close()


@pytest.mark.heavy
def test_package_and_class_names_are_looked_up_once() -> None:
    asked: list[str] = []

    class Py4J(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline():
                name = [self.rfile.readline().decode().strip() for _ in range(4)][1]
                asked.append(name)
                self.wfile.write(b"!ycorg.Thing\n" if name == "org.Thing" else b"!yp\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Py4J) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = SealedClient(GatewayParameters(port=server.server_address[1]), 1)
        for _ in range(2):
            # `Thing` may be imported between the two.
            for name in ("org", "org.Thing", "Thing"):
                answer = client.send_command(f"r\nu\n{name}\nrj\ne\n")
                assert answer == ("ycorg.Thing" if name == "org.Thing" else "yp")
        client._get_connection().close()
        server.shutdown()
    assert asked == ["org", "org.Thing", "Thing", "Thing"]


def test_call_after_all_connections_are_closed_fails_at_once() -> None:
    """Py4J closes a connection if a call is interrupted, and the JVM no longer listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = SealedClient(GatewayParameters(port=server.getsockname()[1]), 2)
        for _ in range(2):
            client._get_connection().close()
        with pytest.raises(Py4JNetworkError, match="all connections to the JVM are closed"):
            client._get_connection()


@pytest.mark.flink
def test_discarding_java_objects_does_not_wait_for_a_suspended_jvm(
    flink_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Any] = []
    clients: set[Any] = set()
    release = py4j.java_gateway._garbage_collect_object
    monkeypatch.setattr(
        py4j.java_gateway,
        "_garbage_collect_object",
        lambda client, id: (release(client, id), clients.add(client), released.append(id)),
    )
    start_jvm(flink_logs, heap_mb=768)
    release_in_background()
    made = [get_gateway().jvm.java.util.ArrayList() for _ in range(3)]
    ids = {each._target_id for each in made}
    cycle: list[Any] = [made]
    cycle.append(cycle)
    pid = jvm_process()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        del made, cycle
        collector = threading.Thread(target=gc.collect, daemon=True)
        collector.start()
        collector.join(60)
        assert not collector.is_alive()
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: ids <= set(released))
    # Another connection is another thread of the JVM, and Flink's planner must be called on one thread.
    assert get_gateway()._gateway_client not in clients
