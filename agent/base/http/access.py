"""Checks token, certificate and `Host` of an HTTP listener, which stops DNS rebinding by local browsers'
pages.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agent.base.files import named, open_regular, others_may
from agent.base.listen_sockets import EVERYWHERE
from agent.base.supervisor import ConditionError

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE: Final = EVERYWHERE | {""}
_TOKEN: Final = re.compile(rb"[!-~]{1,512}\Z")
_MOST: Final = 1024


class AccessError(ConditionError, ValueError):
    """A file is unusable; the text names it, the reason and the remedy."""


def read_token(path: Path) -> bytes:
    """Read a token from an owner-only file. Raises `AccessError`."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_MOST).strip()
    except OSError as error:
        raise AccessError(
            f"token_file {named(path)} cannot be read ({error.strerror}); put the token there"
        ) from None
    if others_may(path, mode):
        raise AccessError(f"token_file {path} may be read by others than its owner; chmod 600 it")
    if not _TOKEN.match(token):
        raise AccessError(f"token_file {path} must hold 1 to 512 visible ASCII characters without a space")
    return token


def tls_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or newer. Raises `AccessError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (cert, key):
        try:
            open_regular(path).close()
        except OSError as error:
            raise AccessError(
                f"{named(path)} cannot be read ({error.strerror}); put it there in PEM"
            ) from None
    try:
        # A key behind a password would ask for it on the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise AccessError(
            f"{cert} and {key} are not a certificate chain with its key in PEM ({reason})"
        ) from None
    return context


def shows(header: str | None, token: bytes) -> bool:
    """Tell whether an `Authorization` header has the token: `Bearer`, or InfluxDB's `Token` or `Basic`
    password.
    """
    scheme, _, shown = (header or "").strip().partition(" ")
    data = shown.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            data = base64.b64decode(data, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() not in ("bearer", "token"):
        return False
    return hmac.compare_digest(data, token)


def is_loopback(host: str) -> bool:
    """Tell whether only local programs reach this host."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


class Hosts:
    """Names of a server on `listen`: that address, loopback, and `more`. Any address, if it listens
    everywhere.
    """

    def __init__(self, listen: str, more: Iterable[str] = ()) -> None:
        self._names = _LOOPBACK | {name.lower() for name in (listen, *more) if name not in _EVERYWHERE}
        self._any_address = listen in _EVERYWHERE

    def admit(self, header: str | None) -> bool:
        """Tell whether a `Host` header names this server, ignoring the port."""
        name = _host(header or "")
        return name in self._names or (self._any_address and _address(name) is not None)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
