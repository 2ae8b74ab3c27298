"""TLS to the servers of others."""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(ca: Path | None) -> ssl.SSLContext:
    """How to check a server's certificate: by the authorities of a file, or the system's. Every Python checks
    alike: since 3.13 `ssl.create_default_context` refuses certificates without an authority key identifier,
    such as nats-server accepts and private authorities issue. Raises `OSError`."""
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
