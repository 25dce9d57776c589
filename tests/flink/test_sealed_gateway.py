"""Another user of this machine cannot reach the JVM's gateway."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from py4j.java_gateway import GatewayParameters
from py4j.protocol import Py4JNetworkError

from forebay.flink import sealed_gateway
from forebay.flink.jvm import launch_jvm
from forebay.flink.sealed_gateway import SealedClient

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


def test_call_after_all_connections_are_closed_fails_at_once() -> None:
    """Py4J closes a connection if a call is interrupted, and the JVM no longer listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = SealedClient(GatewayParameters(port=server.getsockname()[1]), 2)
        for _ in range(2):
            client._get_connection().close()
        with pytest.raises(Py4JNetworkError, match="all connections to the JVM are closed"):
            client._get_connection()
