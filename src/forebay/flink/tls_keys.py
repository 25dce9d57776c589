"""The key that an embedded Flink and its client share: nobody else is served.

Flink's REST service runs code for anyone who can reach it, and a loopback interface can be reached by every
user of the machine and, through their browsers, by every web page.
"""

from __future__ import annotations

import datetime as dt
import secrets
import shutil
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from forebay.files import private_folder

VALID = dt.timedelta(days=3650)
NAME = "localhost"
PEM, KEY_STORE, TRUST_STORE, PASSWORD = "key.pem", "key.p12", "trust.p12", "password"


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """A private folder with a key and its self-signed certificate, in the forms for Python and Java."""

    folder: Path

    def flink_options(self) -> dict[str, str]:
        """Flink options that require this certificate on every port of an embedded cluster."""
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
        """A context for clients, with the certificate for both sides."""
        pem = self.folder / PEM
        context = ssl.create_default_context(cafile=str(pem))
        context.load_cert_chain(pem)
        return context


def tls_keys(folder: Path) -> TlsKeys:
    """The keys in `folder`; creates them if missing (0.1 s). Safe for several processes at once. Raises
    `SettingError` if `folder` cannot be private."""
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
