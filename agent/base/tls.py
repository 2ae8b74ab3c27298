"""Configures TLS to foreign servers."""

from __future__ import annotations

import ssl
from pathlib import Path


def client_context(ca: Path | None) -> ssl.SSLContext:
    """Return a client context for a CA file or the system's. Raises `OSError`.

    It accepts certificates without authority key identifier, which Python 3.13's default refuses.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
