"""Requests to Flink's REST service: an embedded one keeps a connection, and serves only its folder's key."""

from __future__ import annotations

import gc
import socket
import ssl
import stat
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.harness.http_server import QuietHandler, in_thread

from forebay.errors import LaunchError
from forebay.flink import rest
from forebay.flink.rest import PEM, FlinkRest, NotFound, RestSilent, TlsKeys, tls_keys
from forebay.ports import free_port
from forebay.testing.waiting import wait_until


@dataclass
class Service:
    """`asked`: method, path and connection number of each request."""

    keys: TlsKeys
    port: int = 0
    connections: int = 0
    tls: bool = True
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def of(self) -> FlinkRest:
        if not self.tls:
            return FlinkRest(f"http://127.0.0.1:{self.port}")
        return FlinkRest(f"https://localhost:{self.port}", self.keys)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(Service(tls_keys(tmp_path / "keys"))) as service:
        yield service


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Service]:
    with served(Service(TlsKeys(tmp_path), tls=False)) as service:
        yield service


@contextmanager
def served(service: Service) -> Iterator[Service]:

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            service.connections += 1
            self.number = service.connections

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            service.asked.append((self.command, self.path, self.number))
            if self.path == "/closes" and self.number == 1:
                self.close_connection = True
                return
            if self.path == "/silent":
                service.ended.wait()
            if self.path == "/garbage" and self.number == 1:
                self.wfile.write(b"HTTP/9.9 what\r\n\r\n")
                self.close_connection = True
                return
            body = {"/empty": b"", "/words": b"<html>"}.get(self.path, sent or b'{"it": "is"}')
            self.send_response({"/none": 404, "/wrong": 500}.get(self.path, 200))
            cut = self.path == "/cut" and self.number == 1
            self.send_header("Content-Length", str(len(body) + cut))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = cut or self.path == "/last"

        do_POST = do_PATCH = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if service.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(service.keys.folder / PEM)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    service.port = server.server_address[1]
    with in_thread(server):
        yield service
        service.ended.set()


def test_requests_share_one_connection(service: Service) -> None:
    flink = service.of()
    for path in ("/a", "/none", "/wrong", "/b"):
        if path in {"/none", "/wrong"}:
            with pytest.raises(NotFound if path == "/none" else LaunchError, match=r"answered \d"):
                flink.json(path)
        else:
            assert flink.json(path) == {"it": "is"}
    assert service.connections == 1


@pytest.mark.heavy
def test_each_thread_has_its_own_connection(service: Service) -> None:
    flink = service.of()
    flink.json("/a")
    gc.collect()  # sockets that other tests left open are not of interest here
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        thread = threading.Thread(target=flink.json, args=("/b",))
        thread.start()
        thread.join()
        gc.collect()
    left_open = [str(each.message) for each in seen if str(service.port) in str(each.message)]
    assert left_open == []
    assert {number for *_, number in service.asked} == {1, 2}


def test_closed_connection_is_reopened(service: Service) -> None:
    flink = service.of()
    assert flink.json("/last") == {"it": "is"}
    assert flink.json("/a") == {"it": "is"}
    assert service.connections == 2


def test_unanswered_request_on_a_kept_connection_is_retried(service: Service) -> None:
    flink = service.of()
    flink.json("/a")
    assert flink.json("/closes") == {"it": "is"}
    assert service.asked[1:] == [("GET", "/closes", 1), ("GET", "/closes", 2)]


def test_malformed_answer_on_a_kept_connection_is_retried(service: Service) -> None:
    flink = service.of()
    flink.json("/a")
    assert flink.json("/garbage") == {"it": "is"}
    assert service.asked[1:] == [("GET", "/garbage", 1), ("GET", "/garbage", 2)]


def test_truncated_answer_on_a_kept_connection_is_retried(service: Service) -> None:
    flink = service.of()
    flink.json("/a")
    assert flink.json("/cut") == {"it": "is"}
    assert service.asked[1:] == [("GET", "/cut", 1), ("GET", "/cut", 2)]


def test_no_retry_on_a_new_connection(service: Service) -> None:
    with pytest.raises(LaunchError, match="does not answer"):
        service.of().json("/closes")
    assert service.asked == [("GET", "/closes", 1)]


def test_writes_are_sent_once_on_a_new_connection(service: Service) -> None:
    flink = service.of()
    flink.json("/a")
    assert flink.json("/b", "POST", {"drain": True}) == {"drain": True}
    flink.ask("/c", "PATCH")
    assert service.asked == [("GET", "/a", 1), ("POST", "/b", 2), ("PATCH", "/c", 3)]


def test_rest_of_a_cut_answer_is_not_the_next_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest, "MAX_ANSWER_BYTES", 5)
    flink = service.of()
    assert flink.ask("/a") == b'{"it"'
    assert flink.ask("/b") == b'{"it"'


def test_silence_is_a_separate_error(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "REST_TIMEOUT_S", 0.05)
    flink = service.of()
    with pytest.raises(RestSilent):
        flink.ask("/silent")
    assert len(service.asked) <= 1, "it was not asked again"
    service.ended.set()
    monkeypatch.undo()
    assert service.of().json("/a") == {"it": "is"}


def test_silence_on_a_kept_connection_is_not_retried(service: Service) -> None:
    flink = service.of()
    flink.ask("/a")
    flink._connection().sock.settimeout(0.05)
    with pytest.raises(RestSilent):
        flink.ask("/silent")
    service.ended.set()
    assert flink.json("/b") == {"it": "is"}, "it continues with another connection"
    wait_until(lambda: ("GET", "/silent", 1) in service.asked)
    assert [path for _, path, _ in service.asked].count("/silent") == 1


@pytest.mark.parametrize("of", ["service", "cluster"])
def test_malformed_answer_is_reported(of: str, request: pytest.FixtureRequest) -> None:
    flink: FlinkRest = request.getfixturevalue(of).of()
    with pytest.raises(LaunchError, match="/garbage does not answer"):
        flink.ask("/garbage")
    with pytest.raises(LaunchError, match="/words did not answer with JSON: b'<html>'"):
        flink.json("/words")
    with pytest.raises(NotFound, match="/none answered 404"):
        flink.ask("/none")
    with pytest.raises(LaunchError, match="/wrong answered 500"):
        flink.ask("/wrong")
    assert flink.json("/empty", "PATCH") is None


def test_truncated_cluster_answer_is_an_error(cluster: Service) -> None:
    with pytest.raises(LaunchError, match="/cut does not answer"):
        cluster.of().ask("/cut")


def test_cluster_requests_use_new_connections(cluster: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    flink = cluster.of()
    assert flink.json("/a") == {"it": "is"}
    assert flink.json("/b", "POST", {"drain": True}) == {"drain": True}
    assert cluster.asked == [("GET", "/a", 1), ("POST", "/b", 2)]
    monkeypatch.setattr(rest, "MAX_ANSWER_BYTES", 5)
    assert flink.ask("/a") == b'{"it"'
    monkeypatch.setattr(rest, "REST_TIMEOUT_S", 0.05)
    with pytest.raises(RestSilent):
        flink.ask("/silent")


def test_local_cluster_bypasses_the_proxy(cluster: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a job manager queries its own Flink in a network with a proxy."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert cluster.of().json("/a") == {"it": "is"}
    with pytest.raises(LaunchError, match="refused"):
        FlinkRest("http://cluster.invalid:8081").json("/a")


def test_connect_timeout_is_silence(cluster: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def connects_late(*arguments: object, **more: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", connects_late)
    with pytest.raises(RestSilent):
        cluster.of().ask("/a")


def test_connection_refused(service: Service) -> None:
    gone = FlinkRest("https://localhost:1", service.keys)
    with pytest.raises(LaunchError, match="does not answer"):
        gone.json("/a")


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
