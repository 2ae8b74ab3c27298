"""Certificates for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    named = ("-subj", "/CN=petiole", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", "-x509", *made, *named, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key
