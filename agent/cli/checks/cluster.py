"""Whether the certificate of a hub's server proves it to the others of its cluster, as the one that dials and
as the one that is dialled: a handshake with itself, in memory."""

from __future__ import annotations

import ssl
from typing import Final

from agent.cli.checks import Finding
from agent.cli.checks.certificates import GROUP
from agent.config import listen_address
from agent.config.schema import Cluster

_TURNS: Final = 8
"""More than a handshake has messages."""


def look(cluster: Cluster) -> list[Finding]:
    """Judge the certificate; nothing where there is none, or a file cannot be read, which is a finding of its
    own."""
    try:
        contexts = _contexts(cluster)
    except (OSError, ValueError):
        return []
    if contexts is None:
        return []
    host = _own_host(cluster)
    try:
        _shake_hands(*contexts, host)
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or str(error.reason).replace("_", " ").lower()
        remedy = (
            f"let {cluster.tls_ca} sign it, for server and client, with {host or 'the address in routes'} as "
            "subject alternative name"
        )
        return [GROUP.failure(f"the hub's other servers do not accept nats.cluster.tls_cert: {why}", remedy)]
    return [GROUP.ok("the hub's other servers accept nats.cluster.tls_cert")]


def _contexts(cluster: Cluster) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Of the server that dials and of the one that is dialled."""
    cert, key, authority = cluster.tls_cert, cluster.tls_key, cluster.tls_ca
    if cert is None or key is None or authority is None:
        return None
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in contexts:
        context.load_cert_chain(cert, key, password=lambda: "")
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return contexts


def _own_host(cluster: Cluster) -> str | None:
    """Where the others dial this server, None where it listens on all addresses."""
    return listen_address(cluster.listen)[0] if cluster.listen in cluster.routes else None


def _shake_hands(dials: ssl.SSLContext, dialled: ssl.SSLContext, host: str | None) -> None:
    """Raises `ssl.SSLError`."""
    dials.check_hostname = host is not None
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        dials.wrap_bio(back, there, server_hostname=host),
        dialled.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(_TURNS):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
