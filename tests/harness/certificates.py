"""Certificates for tests."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(directory: Path, days: int = 2) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days))
    named = ("-subj", "/CN=petiole", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", "-x509", *made, *named, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


class Authority:
    """An authority that signs certificates for 127.0.0.1 whose end is near."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self._ends: dict[str, datetime] = {}
        self.file = directory / "authority.pem"
        self.file.write_bytes(self._issued(self._name, self._key, timedelta(days=1), authority=True))

    def signed(
        self, name: str, seconds: float, *, begins: float = -60.0, host: str = "127.0.0.1"
    ) -> tuple[Path, Path]:
        """A certificate of a host that holds for so many seconds from now, and its key; again at the same
        paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        cert, secret = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._ends[name] = datetime.now(UTC) + timedelta(seconds=seconds)
        cert.write_bytes(self._issued(subject, key, timedelta(seconds=seconds), begins, host))
        form = serialization.PrivateFormat.PKCS8
        secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        secret.chmod(0o600)
        return cert, secret

    def wait_expired(self, name: str) -> None:
        """Return when a certificate holds no more."""
        while datetime.now(UTC) <= self._ends[name] + timedelta(seconds=1):
            time.sleep(0.1)

    def _issued(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        span: timedelta,
        begins: float = -60.0,
        host: str = "127.0.0.1",
        *,
        authority: bool = False,
    ) -> bytes:
        now = datetime.now(UTC)
        name = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
        address = x509.SubjectAlternativeName([name])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(seconds=begins))
            .not_valid_after(now + span)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(address, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)
