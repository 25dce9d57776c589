"""Flink's REST service: of a cluster over HTTP, of an embedded Flink over TLS with private keys.

An embedded Flink needs them because it runs code for any client.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import secrets
import shutil
import ssl
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forebay.errors import LaunchError
from forebay.files import private_folder

REST_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 8 << 20
HEADERS = {"Content-Type": "application/json"}
LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


class RestSilent(LaunchError): ...


class NotFound(LaunchError): ...


@dataclass(frozen=True)
class FlinkRest:
    """Methods block for about ten seconds at most, and raise `LaunchError` without a good answer.

    Each thread keeps a connection to an embedded Flink, because connecting takes longer than a request.
    """

    url: str
    keys: TlsKeys | None = None

    def json(self, path: str, method: str = "GET", payload: object = None) -> Any:
        body = self.ask(path, method, payload)
        try:
            return json.loads(body or "null")
        except ValueError:
            raise LaunchError(f"{self.url}{path} did not answer with JSON: {body[:80]!r}") from None

    def ask(self, path: str, method: str = "GET", payload: object = None) -> bytes:
        """The raw answer, of at most 8 MiB."""
        url = self.url + path
        data = None if payload is None else json.dumps(payload).encode()
        ask = self._ask_anew if self.keys is None else self._ask_kept
        try:
            status, body = ask(path, method, data)
        except (OSError, ValueError, http.client.HTTPException) as error:
            silent = isinstance(getattr(error, "reason", error), TimeoutError)
            raise (RestSilent if silent else LaunchError)(f"{url} does not answer: {error}") from None
        if status >= 300:
            raise (NotFound if status == 404 else LaunchError)(f"{url} answered {status}")
        return body

    def _ask_anew(self, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, data, HEADERS, method=method)
        try:
            with self._opener.open(request, timeout=REST_TIMEOUT_S) as answer:
                return answer.status, _body(answer)
        except urllib.error.HTTPError as error:
            return error.code, b""

    def _ask_kept(self, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
        connection = self._connection()
        if method != "GET":
            # On a kept connection it is unknown whether Flink processed a request before it closed.
            connection.close()
        kept = connection.sock is not None
        try:
            return _ask_once(connection, path, method, data)
        except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
            if not kept:
                raise
            # Flink has closed it since: it was idle, or this is another Flink.
            return _ask_once(connection, path, method, data)

    def _connection(self) -> _RestConnection:
        assert self.keys is not None
        if not hasattr(self._kept, "connection"):
            host = urlsplit(self.url)
            self._kept.connection = _RestConnection(
                host.hostname or "", host.port, timeout=REST_TIMEOUT_S, context=self.keys.client_context()
            )
        connection: _RestConnection = self._kept.connection
        return connection

    @cached_property
    def _kept(self) -> threading.local:
        return threading.local()

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        if urlsplit(self.url).hostname in LOCAL:
            # A proxy would connect to its own machine.
            return urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener()


class _RestConnection(http.client.HTTPSConnection):
    def __del__(self) -> None:
        self.close()


def _ask_once(connection: _RestConnection, path: str, method: str, data: bytes | None) -> tuple[int, bytes]:
    try:
        connection.request(method, path, data, HEADERS)
        answer = connection.getresponse()
        body = _body(answer)
    except BaseException:
        connection.close()
        raise
    if not answer.isclosed():
        # The answer is incomplete.
        connection.close()
    return answer.status, body


def _body(answer: http.client.HTTPResponse) -> bytes:
    body = answer.read(MAX_ANSWER_BYTES)
    # A limited read does not report that the connection ended.
    if answer.length and len(body) < MAX_ANSWER_BYTES:
        raise http.client.IncompleteRead(body, answer.length)
    return body


VALID = dt.timedelta(days=3650)
NAME = "localhost"
PEM, KEY_STORE, TRUST_STORE, PASSWORD = "key.pem", "key.p12", "trust.p12", "password"


@dataclass(frozen=True, slots=True)
class TlsKeys:
    folder: Path

    def flink_options(self) -> dict[str, str]:
        password = (self.folder / PASSWORD).read_text(encoding="ascii")
        options: dict[str, str] = {}
        for part in ("rest", "internal"):
            prefix = f"security.ssl.{part}"
            options |= {
                f"{prefix}.enabled": "true",
                f"{prefix}.keystore": str(self.folder / KEY_STORE),
                f"{prefix}.keystore-type": "PKCS12",
                f"{prefix}.keystore-password": password,
                f"{prefix}.key-password": password,
                f"{prefix}.truststore": str(self.folder / TRUST_STORE),
                f"{prefix}.truststore-type": "PKCS12",
                f"{prefix}.truststore-password": password,
            }
        return options | {
            "security.ssl.rest.authentication-enabled": "true",
            # Flink's default is for RSA keys.
            "security.ssl.protocol": "TLSv1.3",
            "security.ssl.algorithms": "TLS_AES_128_GCM_SHA256",
        }

    def client_context(self) -> ssl.SSLContext:
        pem = self.folder / PEM
        context = ssl.create_default_context(cafile=str(pem))
        context.load_cert_chain(pem)
        return context


def tls_keys(folder: Path) -> TlsKeys:
    """Creates them if missing (0.1 s). Safe for several processes at once. Raises `SettingError`."""
    if not (folder / PASSWORD).exists():
        private_folder(folder.parent)
        made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".keys-"))
        try:
            _make(made)
            made.rename(folder)
        except OSError:
            # Another process was first: rename does not replace a folder with files.
            shutil.rmtree(made, ignore_errors=True)
    private_folder(folder)
    return TlsKeys(folder)


def _make(folder: Path) -> None:
    from cryptography import x509  # Only here: most starts find the keys.
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A clock that is set back must not make it invalid.
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_urlsafe(32)
    # The password is random, and the plain key is next to it: more rounds would only slow
    # Flink, which opens these files several times at a start.
    encryption = (
        serialization.PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(1)
        .key_cert_algorithm(pkcs12.PBES.PBESv2SHA256AndAES256CBC)
        .hmac_hash(hashes.SHA256())
        .build(password.encode())
    )
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / PEM).write_bytes(plain + certificate.public_bytes(serialization.Encoding.PEM))
    (folder / KEY_STORE).write_bytes(
        pkcs12.serialize_key_and_certificates(b"forebay", key, certificate, None, encryption)
    )
    (folder / TRUST_STORE).write_bytes(
        pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(certificate, b"forebay")], encryption)
    )
    (folder / PASSWORD).write_text(password, encoding="ascii")
