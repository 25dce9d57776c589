"""The key of an embedded Flink: created once, private, and valid for that Flink only."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.flink.rest import PEM, TlsKeys, tls_keys


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Run a TLS handshake; raises the client's error."""
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as connection:
                connection.recv(1)
                connection.sendall(b"y")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname="localhost") as connection:
            connection.sendall(b"x")
            if connection.recv(1) != b"y":
                raise ConnectionResetError
    finally:
        thread.join()


def server_of(keys: TlsKeys) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.folder / PEM)
    context.load_verify_locations(keys.folder / PEM)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_each_side_requires_this_folders_key(tmp_path: Path) -> None:
    ours, theirs = tls_keys(tmp_path / "ours"), tls_keys(tmp_path / "theirs")
    handshake(server_of(ours), ours.client_context())
    with pytest.raises(OSError):  # noqa: PT011 - an alert, or a connection that has ended
        handshake(server_of(ours), theirs.client_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_of(theirs), ours.client_context())


def test_concurrent_creators_get_the_same_key(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "keys"
    with ThreadPoolExecutor(8) as pool:
        options = [keys.flink_options() for keys in pool.map(tls_keys, [folder] * 8)]
    assert all(found == options[0] for found in options)
    assert [path.name for path in folder.parent.iterdir()] == ["keys"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
