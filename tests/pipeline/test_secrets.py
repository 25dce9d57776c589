"""A run with every kind of secret, and a search for each in everything that it leaves or shows."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest
from benchmarks.feeds import FeedServer, serve
from benchmarks.topic_client import consume_committed, make_topic
from pyflink import java_gateway

from forebay.flink import rest
from forebay.flink.jvm import jvm_process, start_jvm
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

from .authority import PASSWORD, SASL, Authority, jaas
from .test_kafka_security import Run

pytestmark = pytest.mark.flink

ENGINE_KEY, REPLICA_KEY, OTHER_KEY = "sk-gateway-1b7e0c", "sk-replica-9d3f52", "sk-other-55ca01"
MONITORING_KEY, FEED_TOKEN = "watch-77aa31", "Bearer feed-c0ffee42"
FAULTS = ("400", "401", "garbage", "error", "500", "schema", "cut", "hang")
"""The last one is in flight at every checkpoint."""
SEEN = "a word that has to be found 4242"


class Search:
    """Secrets by name, and all places that must not contain them."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {
            name: (text.encode(), base64.b64encode(text.encode())[: len(text) // 3 * 4])
            for name, text in secrets.items()
        }
        self.found: set[tuple[str, str]] = set()
        self.searched: dict[str, int] = {}
        """Locations by kind, such as a file's suffix, with their number."""
        self.seen: set[str] = set()
        """Record the location of a value that is not secret."""

    def look(self, kind: str, place: object, content: bytes) -> None:
        self.searched[kind] = self.searched.get(kind, 0) + 1
        if SEEN.encode() in content:
            self.seen.add(kind)
        for name, forms in self._secrets.items():
            if any(form in content for form in forms):
                self.found.add((name, str(place)))

    def look_into(self, folder: Path, but: Path) -> None:
        """Search all files of `folder` except those with the secrets."""
        for place, _, names in os.walk(folder):
            for path in (Path(place, name) for name in names):
                # While it runs, Flink deletes checkpoints.
                with suppress(FileNotFoundError):
                    if but not in path.parents and not path.is_symlink():
                        self.look(_kind(path), path, path.read_bytes())

    def look_at(self, process: psutil.Process, *, given: Mapping[str, str]) -> None:
        """Search arguments and environment, which may contain only `given`."""
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                self.look("arguments", f"arguments of {one}", "\0".join(one.cmdline()).encode())
                others = [value for name, value in one.environ().items() if name not in given]
                self.look("environment", f"environment of {one}", "\0".join(others).encode())


def _kind(path: Path) -> str:
    if path.parent.name.startswith("chk-") or path.parent.name in ("shared", "taskowned"):
        return "checkpoint"
    names = {"out": "dead letters", "journal": "journal", "flink": "logs"}
    return next((names[part.name] for part in path.parents if part.name in names), "other files")


@contextmanager
def gateway(folder: Path, replica: str, tls: tuple[Path, Path], given: Mapping[str, str]) -> Iterator[Any]:
    """`forebay gateway` with keys, monitoring and TLS: its process and its URL."""
    (folder / "replica-key").write_text(REPLICA_KEY)
    settings = {
        "engine": {"url": replica, "api_key": {"file": str(folder / "replica-key")}},
        "keys": [{"name": name, "key": {"env": f"{name.upper()}_KEY"}} for name in ("engine", "other")],
        "monitoring": {"key": {"env": "MONITORING_KEY"}},
        "tls": {"key": str(tls[0]), "certificate": str(tls[1])},
    }
    (folder / "gateway.yaml").write_text(json.dumps(settings))
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "gateway", "--port", "0", "--config", folder / "gateway.yaml"],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=(folder / "gateway-said").open("wb"),
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "https://" in line, (folder / "gateway-said").read_text()
        yield process, line.split()[-1]
    finally:
        process.terminate()
        process.wait(100)


def told(url: str, key: str, ca: Path) -> bytes:
    """The gateway's answer to `key`, including headers."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    context = ssl.create_default_context(cafile=ca)
    try:
        with urllib.request.urlopen(asked, context=context, timeout=30) as answer:
            return bytes(answer.headers) + answer.read()
    except HTTPError as error:
        return bytes(error.headers) + error.read()


# With others that use the same node.
@pytest.mark.slow
@pytest.mark.xdist_group("kafka_security")
def test_run_leaves_and_shows_no_secret(
    secured: Any, authority: Authority, kafka_jar: Path, tmp_path: Path
) -> None:
    results = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(secured.bootstrap, results)
    kept, folder = tmp_path / "kept", tmp_path / "run"
    kept.mkdir()
    folder.mkdir()
    (kept / "jaas").write_text(jaas(PASSWORD))
    tls = authority.issue("gateway")
    posts = [{"text": f"post {n}: {SEEN}"} for n in range(6)]
    records = [*posts, *({"text": f"((fault:{fault})) {SEEN}"} for fault in FAULTS)]
    for_gateway = {"ENGINE_KEY": ENGINE_KEY, "OTHER_KEY": OTHER_KEY, "MONITORING_KEY": MONITORING_KEY}
    for_run = {"ENGINE_KEY": ENGINE_KEY, "FEED_TOKEN": FEED_TOKEN}
    secrets = {**for_gateway, **for_run, "REPLICA_KEY": REPLICA_KEY, "Kafka password": PASSWORD}
    secrets["key of TLS"] = tls[0].read_text().splitlines()[1]
    script = ReplicaScript(delay=Fixed(0.02), api_key=REPLICA_KEY)
    with (
        serve(FeedServer(records)) as feed,
        ReplicaProcess(script) as replica,
        gateway(kept, replica.url, tls, for_gateway) as (front, url),
    ):
        run = Run(
            folder,
            kafka_jar,
            {**for_run, "SSL_CERT_FILE": str(authority.ca)},
            source={
                "type": "sse",
                "url": feed.events_url,
                "headers": {"Authorization": {"env": "FEED_TOKEN"}},
            },
            engine={"url": url, "api_key": {"env": "ENGINE_KEY"}},
            retry={"max_attempts": 2, "base_s": 0.05},
            timeout_s=20.0,
            deadline_s=20.0,
            journal={"path": "journal/answers"},
            dead_letters={"type": "jsonl", "path": "out"},
            sink={
                "type": "kafka",
                "bootstrap": secured.bootstrap_of("SASL_PLAINTEXT"),
                "topic": results,
                "properties": SASL,
                "secrets": {"sasl.jaas.config": {"file": str(kept / "jaas")}},
            },
            checkpoint={"interval_s": 0.5},
        )
        process = run.start(url)
        try:
            wait_until(
                lambda: (
                    process.poll() is not None
                    or len(consume_committed(secured.bootstrap, results)) >= len(posts)
                ),
                timeout_s=180.0,
            )
            assert process.poll() is None, process.stdout and process.stdout.read()[-3000:]
            keys = run.home / "run" / "flink" / "keys"
            secrets["password of Flink's key"] = (keys / rest.PASSWORD).read_text()
            secrets["Flink's key"] = (keys / rest.PEM).read_text().splitlines()[1]
            search = Search(secrets)
            search.look("Flink's service", "Flink's service", run.told())
            search.look_at(psutil.Process(process.pid), given=for_run)
            search.look_at(psutil.Process(front.pid), given=for_gateway)

            def seen() -> bool:
                search.look_into(folder, but=keys)
                return {"checkpoint", "dead letters"} <= search.seen

            wait_until(seen)
            for path in ("/health", "/metrics", "/openapi.json", "/v1/models", "/nothing"):
                for key in (ENGINE_KEY, MONITORING_KEY, "sk-wrong"):
                    search.look("gateway", url + path, told(url + path, key, authority.ca))
        finally:
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=400)[0]
        search.look("said", "output of the run", text.encode())
        search.look_into(folder, but=keys)
    search.look("said", "output of the gateway", (kept / "gateway-said").read_bytes())
    for record in consume_committed(secured.bootstrap, results):
        search.look("results", results, record.value())
    assert feed.authorizations[0] == FEED_TOKEN
    assert {"checkpoint", "dead letters", "results"} <= search.seen
    assert search.searched.keys() >= {
        "journal",
        "logs",
        "arguments",
        "environment",
        "gateway",
        "Flink's service",
        "said",
    }
    assert search.found == set()


def test_jvm_gateway_token_is_in_memory_only(flink_logs: Path, pipelines: Any) -> None:
    start_jvm(flink_logs, heap_mb=768)
    token = java_gateway.get_gateway().gateway_parameters.auth_token
    assert token
    assert len(token) > 20
    pipelines.write({"text": SEEN})
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.02))) as replica:
        pipelines.run(pipelines.spec(), replica.url)
    search = Search({"token": token})
    search.look_into(flink_logs, but=flink_logs / "none")
    search.look_into(pipelines.folder, but=flink_logs / "none")
    for process in (psutil.Process(), psutil.Process(jvm_process()[0])):
        search.look_at(process, given={})
    assert search.seen
    assert search.found == set()
