"""Runs against a node that requires passwords and certificates: access works, and no secret leaks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume_committed, make_topic, produce
from tests.harness.homes import new_home

from forebay.errors import SettingError
from forebay.flink.rest import FlinkRest, TlsKeys
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

from .authority import MODULE, PASSWORD, SASL, SHADED, Authority, jaas

# One run, or one node, for all of them.
pytestmark = [pytest.mark.flink, pytest.mark.xdist_group("kafka_security")]


class Run:
    """`forebay run` in its own home, so that everything it leaves can be searched."""

    def __init__(self, folder: Path, jar: Path, environ: dict[str, str], **document: Any) -> None:
        self.home = new_home(folder / "home", jar.parent)
        (folder / "p.yaml").write_text(json.dumps({"name": "p", "prompt": "{{ text }}", **document}))
        self._folder = folder
        self._environ = {**os.environ, "FOREBAY_HOME": str(self.home), **environ}

    def start(self, engine: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", "run", "p.yaml", "--engine", engine],
            cwd=self._folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def told(self) -> bytes:
        """The job in Flink's own REST service while it runs."""
        logs = self.home / "run" / "flink"
        log = "".join(path.read_text() for path in logs.glob("*.log"))
        port = re.findall(r"Rest endpoint listening at [\w.-]+:(\d+)", log)[-1]
        rest = FlinkRest(f"https://localhost:{port}", TlsKeys(logs / "keys"))
        job = rest.json("/jobs/overview")["jobs"][0]["jid"]
        paths = (f"/jobs/{job}", f"/jobs/{job}/plan", f"/jobs/{job}/config", "/jobmanager/config")
        return b"".join(map(rest.ask, paths))

    def left(self) -> dict[Path, bytes]:
        """All files: logs, checkpoints, notes."""
        found = {}
        for place, _, names in os.walk(self._folder):
            for path in (Path(place, name) for name in names):
                # While it runs, Flink deletes checkpoints.
                with suppress(FileNotFoundError):
                    found[path] = path.read_bytes()
        return found


@pytest.mark.long
def test_passwords_and_certificates_work_and_do_not_leak(
    secured: Any, authority: Authority, kafka_jar: Path, tmp_path: Path
) -> None:
    read, results = (f"t-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for topic in (read, results):
        make_topic(secured.bootstrap, topic)
    produce(secured.bootstrap, read, [{"value": orjson.dumps({"text": f"event {n}"})} for n in range(10)])
    key, certificate = authority.issue("ann")
    run = Run(
        tmp_path,
        kafka_jar,
        {"KAFKA_JAAS": jaas(PASSWORD)},
        source={
            "type": "kafka",
            "bootstrap": secured.bootstrap_of("SASL_PLAINTEXT"),
            "topics": [read],
            "properties": SASL,
            "secrets": {"sasl.jaas.config": {"env": "KAFKA_JAAS"}},
        },
        sink={
            "type": "kafka",
            "bootstrap": secured.bootstrap_of("SSL"),
            "topic": results,
            "properties": {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(authority.ca),
                "ssl.keystore.type": "PEM",
            },
            "secrets": {
                "ssl.keystore.key": {"file": str(key)},
                "ssl.keystore.certificate.chain": {"file": str(certificate)},
            },
        },
        checkpoint={"interval_s": 0.5},
    )
    running: dict[Path, bytes] = {}
    secrets = [PASSWORD.encode(), *key.read_bytes().splitlines()[1:-1]]
    with ReplicaProcess(ReplicaScript(delay=Fixed(0.02))) as replica:
        process = run.start(replica.url)
        try:
            wait_until(
                lambda: (
                    process.poll() is not None or len(consume_committed(secured.bootstrap, results)) == 10
                ),
                timeout_s=180.0,
            )
            assert process.poll() is None, process.stdout and process.stdout.read()[-3000:]
            told = run.told()

            def has_checkpoint() -> bool:
                running.update(run.left())
                return any(path.name == "_metadata" for path in running)

            # It may go while it is looked for.
            wait_until(has_checkpoint)
        finally:
            process.send_signal(signal.SIGINT)
            text = process.communicate(timeout=400)[0]
    assert b"sasl.jaas.config" in b"".join(running.values())
    for place, content in {**running, **run.left(), "told": told, "said": text.encode()}.items():
        assert not [secret for secret in secrets if secret in content], place


def refused(pipelines: Any, logs: Path, source: dict[str, Any]) -> str:
    """Return the one-line error of a run that is rejected before it starts; it contains no password."""
    with pytest.raises(SettingError) as error:
        pipelines.run(pipelines.spec(source={"type": "kafka", **source}), "http://127.0.0.1:9")
    files = (path for at in (pipelines.folder, logs) for path in at.rglob("*") if path.is_file())
    assert [path for path in files if b"hush-hush" in path.read_bytes()] == []
    text = str(error.value)
    assert "hush-hush" not in text
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (jaas("hush-hush-wrong"), "rejects this client: Authentication failed: Invalid username or password"),
        (jaas("hush-hush-wrong", MODULE), f"login modules are in {SHADED}"),
        (jaas(PASSWORD, user="bob"), "that this client may see; create it first, or let the client read it"),
        (f"{SHADED}{MODULE} required username=ann password=hush-hush wrong;", "check 'properties' and the"),
    ],
)
def test_failed_login_is_one_sentence_without_the_password(
    secured: Any, kafka_jar: Path, pipelines: Any, flink_logs: Path, *, config: str, words: str
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(secured.bootstrap, topic)
    secret = pipelines.folder.with_suffix(".secret")
    secret.write_text(config)
    secret.chmod(0o600)
    source = {
        "bootstrap": secured.bootstrap_of("SASL_PLAINTEXT"),
        "topics": [topic],
        "properties": SASL,
        "secrets": {"sasl.jaas.config": {"file": str(secret)}},
    }
    assert words in refused(pipelines, flink_logs, source)


def test_untrusted_certificate_is_rejected_at_once(
    secured: Any, kafka_jar: Path, pipelines: Any, flink_logs: Path
) -> None:
    other = Authority(pipelines.folder / "other")
    source = {
        "bootstrap": secured.bootstrap_of("SSL"),
        "topics": ["any"],
        "properties": {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(other.ca),
        },
    }
    assert "rejects this client: SSL handshake failed" in refused(pipelines, flink_logs, source)
