"""A store or schema registry that answers wrongly learns no secret, and leads nowhere else."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.harness.http_server import QuietHandler, serving

from forebay.clients.s3.client import S3Client
from forebay.connectors.kafka import registry
from forebay.connectors.kafka.registry import RegistryAway, RegistryRetry, SchemaRegistry, registry_client
from forebay.errors import ForebayError
from forebay.settings import SecretRef

from ..harness.clock import ManualClock  # noqa: TID252
from .bounds import within_bounds

pytestmark = pytest.mark.heavy

KEY, SECRET = "AKIAATTACKED", "the-secret-of-the-store"


@contextmanager
def answering(status: int, headers: dict[str, str], body: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server that answers everything alike; yields its address, and the heads and paths of all requests."""
    asked: list[str] = []

    class Handler(QuietHandler):
        def _any(self) -> None:
            asked.append(f"{self.path}\n{self.headers}")
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
                while "Content-Length" in headers:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                pass

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any

    with serving(Handler) as url:
        yield url, asked


XML = b"<?xml version='1.0'?><Error><Code>%b</Code><Message>m</Message><Endpoint>%b</Endpoint></Error>"


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400])
def test_object_store_cannot_redirect_to_another_server(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "forebay")
    with answering(200, {}, b"") as (other, led):
        headers = {"Location": f"{other}/b/k", "x-amz-bucket-region": f"{other[7:]}/#"}
        with answering(status, headers, XML % (b"PermanentRedirect", other.encode())) as (url, asked):
            for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("ENDPOINT_URL", url)):
                monkeypatch.setenv(f"AWS_{name}", value)
            s3 = S3Client("b", timeout_s=5, attempts=2)
            for call in (s3.check, s3.get, s3.entries, s3.abort_uploads):
                with pytest.raises(ForebayError) as caught:
                    call("k")
                assert SECRET not in str(caught.value)
    assert asked
    assert not led
    assert SECRET not in caplog.text + "".join(asked)


def test_endless_object_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Content-Length": str(1 << 40), "ETag": '"e"'}
    with answering(200, headers, b"") as (url, _):
        for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("ENDPOINT_URL", url)):
            monkeypatch.setenv(f"AWS_{name}", value)
        with within_bounds(), pytest.raises(ForebayError, match="more than 16777216 bytes"):
            S3Client("b", timeout_s=5, attempts=1).get("k")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_registry_cannot_redirect_to_another_server(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY", f"user:{SECRET}")
    clock = ManualClock()
    with (
        answering(200, {}, b"{}") as (other, led),
        answering(status, {"Location": other}, b"") as (url, asked),
    ):
        patience = RegistryRetry(url, clock=clock, sleep=lambda s: clock.advance(registry.PATIENCE_S))
        client = registry_client(SchemaRegistry(url, SecretRef(env="REGISTRY")), patience)
        with pytest.raises(ForebayError) as caught:
            client.get_schema(1)
    assert asked
    assert not led
    assert SECRET not in str(caught.value)


def test_registry_with_an_endless_head_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PATIENCE_S", 0.5)
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not ended.wait(0.1):
                connection.sendall(b"a")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = registry_client(SchemaRegistry(url), RegistryRetry(url, sleep=lambda s: None))
        try:
            with pytest.raises(RegistryAway, match="no whole answer within"):
                client.get_schema(1)
        finally:
            ended.set()
    thread.join()
