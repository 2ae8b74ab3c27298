"""How a leaf's nats-server reaches an address of its hub: the proxy, TLS and websocket of `nats.remote`."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from agent.base.nats_server import VARIABLE

LEAF_PORT: Final = 7422
RELAY_REFUSAL: Final = "502 Relay "
"""Begins the status with which the agent's own relay refuses; the reason follows."""
_WEBSOCKET: Final = ("ws", "wss")


class Tls(NamedTuple):
    """How to speak TLS."""

    context: ssl.SSLContext
    first: bool = False
    """Before the server has said a word."""
    name: str | None = None
    """For which name its certificate must be; None: the host that is dialled."""


class Proxy(NamedTuple):
    """An HTTP proxy that connects to the server."""

    address: tuple[str, int]
    tls: ssl.SSLContext | None = None
    authorization: str = ""
    problem: str = ""
    """Why it cannot be asked."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a server is reached."""

    tls: Tls | None = None
    proxy: Proxy | None = None
    websocket: str | None = None
    """The path that is asked for, None without a websocket."""
    upgrades: bool = True
    """Whether TLS begins where the greeting asks for it."""


PLAIN: Final = Route()


def address_of(url: str) -> tuple[str, int]:
    """Host and port of an address of the hub. Without a port it is 7422 for a websocket too
    (`findings/nats-leaf-websocket-without-port-dials-7422.sh`)."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or LEAF_PORT


def route_of(url: str, remote: Mapping[str, Any], urls: Iterable[str]) -> Route:
    """How a leaf's server reaches one of its hub's addresses by `nats.remote`."""
    parts = urlsplit(url)
    table = remote.get("tls")
    tls = None
    if isinstance(table, dict) or parts.scheme in ("tls", "wss"):
        table = table if isinstance(table, dict) else {}
        tls = Tls(_context(table), bool(table.get("handshake_first")), _tls_name(url, urls))
    path = f"{parts.path.rstrip('/')}/leafnode" if parts.scheme in _WEBSOCKET else None
    return Route(tls, _proxy(remote.get("proxy")), path)


def _tls_name(url: str, urls: Iterable[str]) -> str | None:
    """The name that the certificate must bear: the first host name of the remote where an address is dialled
    (`saveTLSHostname` of nats-server)."""
    if not _is_address(address_of(url)[0]):
        return None
    names = (address_of(one)[0] for one in urls)
    return next((name for name in names if not _is_address(name)), None)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _context(table: Mapping[str, Any]) -> ssl.SSLContext:
    """TLS as a remote's table says. Files that cannot be used are findings of their own."""
    context = ssl.create_default_context()
    authority = table.get("ca_file")
    with contextlib.suppress(OSError, TypeError, ValueError):
        if isinstance(authority, str):
            context = ssl.create_default_context(cafile=authority)
    if table.get("insecure") is True:
        context = reading()
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError):
        context.load_cert_chain(table["cert_file"], table["key_file"], password=lambda: "")
    return context


def _proxy(table: Any) -> Proxy | None:
    if not isinstance(table, dict) or not isinstance(table.get("url"), str):
        return None
    parts = urlsplit(table["url"])
    secure = parts.scheme == "https"
    words, problem = [], ""
    for key in ("username", "password"):
        word = str(table.get(key, ""))
        if (variable := VARIABLE.match(word)) and (found := os.environ.get(word.lstrip("$"))) is None:
            problem = f"{variable[0]} of its {key} is a variable of the server's environment"
        elif variable:
            word = found or ""
        words.append(word)
    basic = base64.b64encode(":".join(words).encode()).decode() if all(words) else ""
    inner = table.get("tls")
    tls = _context(inner if isinstance(inner, dict) else {}) if secure else None
    port = parts.port or (443 if secure else 80)
    return Proxy((parts.hostname or "", port), tls, f"Basic {basic}" if basic else "", problem)


def reading() -> ssl.SSLContext:
    """TLS that accepts a certificate of any issuer, for what only looks and sends nothing secret."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
