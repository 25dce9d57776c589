"""Certificates and logins of a Kafka that requires them."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

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
        """Return the files of a key and its certificate."""
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
