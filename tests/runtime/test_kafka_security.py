"""`forebay run` against a node that wants passwords and certificates: it gets in, and no secret is found."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from benchmarks.topic_client import consume_committed, make_topic, produce
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from forebay.flink.rest import FlinkRest
from forebay.flink.tls_keys import TlsKeys
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed
from forebay.testing.waiting import wait_until

# One run, or one node, for all of them.
pytestmark = [pytest.mark.flink, pytest.mark.xdist_group("kafka_security")]

PASSWORD = "hush-hush-4711"
SHADED = "org.apache.flink.kafka.shaded."
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}


def jaas(password: str, module: str = SHADED + MODULE, user: str = "ann") -> str:
    return f'{module} required username="{user}" password="{password}";'


class Authority:
    """Certificates of one authority, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._signed(self._name, self._key, ca=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """The files of a key and of its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        paths = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        paths[0].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        paths[1].write_bytes(self._signed(subject, key, ca=False))
        return paths

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        begin = datetime.datetime(2020, 1, 1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=36500))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        )
        return made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    kafka_home: Path, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A node that also listens with a password and with certificates of both sides."""
    from forebay.testing.kafka import local_kafka

    key, certificate = authority.issue("broker")
    store = authority.folder / "broker-store.pem"
    store.write_bytes(key.read_bytes() + certificate.read_bytes())
    tls = "listener.name.ssl.ssl"
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_ann="{PASSWORD}" '
        f'user_bob="{PASSWORD}";',
        # Who has no rights, as bob, sees no topics.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:ann;User:CN=ann",
        f"{tls}.keystore.type": "PEM",
        f"{tls}.keystore.location": str(store),
        f"{tls}.truststore.type": "PEM",
        f"{tls}.truststore.location": str(authority.ca),
        f"{tls}.client.auth": "required",
    }
    folder = tmp_path_factory.mktemp("secured")
    with local_kafka(kafka_home, folder, settings, ("SASL_PLAINTEXT", "SSL")) as node:
        yield node


class Run:
    """`forebay run` with a home of its own, so that all that it leaves can be searched."""

    def __init__(self, folder: Path, jar: Path, environ: dict[str, str], **document: Any) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "connectors").symlink_to(jar.parent)
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

    def to_its_end(self) -> tuple[int, str]:
        """The status and what is said of one that shall end by itself, at once.

        A minute is well below the two for which brokers that are away are waited for.
        """
        process = self.start("http://127.0.0.1:9")
        try:
            said = process.communicate(timeout=400)[0]
        finally:
            process.kill()
        return process.returncode, said

    def told(self) -> bytes:
        """What Flink's own service tells of the job while it runs."""
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


def test_passwords_and_certificates_let_it_in_and_are_found_nowhere(
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
            # A checkpoint may go while it is looked for.
            while not any(path.name == "_metadata" for path in running):
                running.update(run.left())
        finally:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=400)[0]
    assert b"sasl.jaas.config" in b"".join(running.values())
    for place, content in {**running, **run.left(), "told": told, "said": said.encode()}.items():
        assert not [secret for secret in secrets if secret in content], place


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (jaas("hush-hush-wrong"), "refuses: Authentication failed: Invalid username or password"),
        (jaas("hush-hush-wrong", MODULE), f"login modules are in {SHADED}"),
        (jaas(PASSWORD, user="bob"), "that this client may see; create it first, or let the client read it"),
        (f"{SHADED}{MODULE} required username=ann password=hush-hush wrong;", "check 'properties' and the"),
    ],
)
def test_a_login_that_will_not_do_is_one_sentence_at_once_without_the_password(
    secured: Any, kafka_jar: Path, tmp_path: Path, config: str, words: str
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    make_topic(secured.bootstrap, topic)
    secret = tmp_path.parent / f"{tmp_path.name}.secret"
    secret.write_text(config)
    run = Run(
        tmp_path,
        kafka_jar,
        {},
        source={
            "type": "kafka",
            "bootstrap": secured.bootstrap_of("SASL_PLAINTEXT"),
            "topics": [topic],
            "properties": SASL,
            "secrets": {"sasl.jaas.config": {"file": str(secret)}},
        },
        sink={"type": "jsonl", "path": "out"},
    )
    status, said = run.to_its_end()
    assert status != 0
    assert words in " ".join(said.split())
    assert "Traceback" not in said
    for place, content in {**run.left(), "said": said.encode()}.items():
        assert b"hush-hush" not in content, place


def test_a_certificate_of_another_authority_is_refused_at_once(
    secured: Any, kafka_jar: Path, tmp_path: Path, authority: Authority
) -> None:
    other = Authority(tmp_path / "other")
    run = Run(
        tmp_path,
        kafka_jar,
        {},
        source={
            "type": "kafka",
            "bootstrap": secured.bootstrap_of("SSL"),
            "topics": ["any"],
            "properties": {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(other.ca),
            },
        },
        sink={"type": "jsonl", "path": "out"},
    )
    status, said = run.to_its_end()
    assert status != 0
    assert "refuses: SSL handshake failed" in " ".join(said.split())
