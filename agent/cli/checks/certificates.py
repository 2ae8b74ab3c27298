"""Judges certificate validity, the clock, and a hub server's certificate within its cluster."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from agent.base.certificates import Validity
from agent.base.logs import time_text
from agent.cli.checks import Cause, Finding, Group
from agent.config import listen_address
from agent.config.server_schema import Cluster

GROUP: Final = Group("certificates")
_TURNS: Final = 8
"""More than a handshake's messages."""

CLOCK: Final = Group("clock")
_EARLIEST: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""Earliest possible time: this program's writing."""
_NEAR: Final = 2.0
_FAR: Final = 60.0
_SERVICE: Final = "let chrony or systemd-timesyncd run (`timedatectl set-ntp true`) and reach a time server"


def judge(name: str, certificate: Validity, now: datetime) -> Finding:
    if now < certificate.begins:
        return GROUP.failure(
            f"{name} is not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC, and the clock says "
            f"{now:%Y-%m-%d %H:%M}",
            "compare the clock with another one; if it is right, take a certificate that is valid now",
        ).after(Cause.CLOCK)
    if now > certificate.ends:
        return GROUP.failure(f"{name} expired on {certificate.ends:%Y-%m-%d %H:%M} UTC", "renew it")
    if now > certificate.renewal:
        left = (certificate.ends - now).days
        return GROUP.warning(f"{name} expires in {left} days, on {certificate.ends:%Y-%m-%d}", "renew it")
    return GROUP.ok(f"{name} is valid until {certificate.ends:%Y-%m-%d}")


def is_set(wall: float) -> bool:
    """Tell whether a clock with these epoch seconds can have been set."""
    return wall >= _EARLIEST


def judge_clock(
    wall: float, synchronised: bool, ahead: tuple[float, float] | None = None
) -> Iterator[Finding]:
    """Judge the clock. `ahead` is its lead over the hub's clock and the error, None if unknown."""
    shown = datetime.fromtimestamp(wall, UTC)
    if not is_set(wall):
        sentence = f"the clock says {shown:%Y-%m-%d %H:%M} UTC: it is not set"
        yield CLOCK.failure(sentence, _SERVICE).causing(Cause.CLOCK)
    elif not synchronised:
        yield CLOCK.warning(
            f"the kernel does not call the clock synchronised; it says {shown:%Y-%m-%d %H:%M} UTC", _SERVICE
        )
    else:
        yield CLOCK.ok("the kernel calls the clock synchronised")
    if ahead is not None:
        yield _beside_the_hub(*ahead)


def _beside_the_hub(ahead: float, exact: float) -> Finding:
    apart = max(0.0, abs(ahead) - exact)
    if apart <= _NEAR:
        return CLOCK.ok(f"this clock and the hub's differ by less than {_NEAR + exact:.0f} s")
    sentence = (
        f"this clock is {time_text(abs(ahead), ' s')} {'ahead of' if ahead > 0 else 'behind'} the hub's"
    )
    remedy = f"{_SERVICE}; do the same on the hub"
    return CLOCK.failure(sentence, remedy) if apart > _FAR else CLOCK.warning(sentence, remedy)


def look_at_cluster(cluster: Cluster) -> list[Finding]:
    """Check by an in-memory handshake that a hub server's certificate is valid in both directions.

    Empty without cluster, or for unreadable files, which other findings report.
    """
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
    """Return the dialling and the dialled server's contexts."""
    if cluster.tls is None:
        return None
    cert, key, authority = cluster.tls
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in contexts:
        context.load_cert_chain(cert, key, password=lambda: "")
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return contexts


def _own_host(cluster: Cluster) -> str | None:
    """Return the host that other servers dial, None for all addresses."""
    return listen_address(cluster.listen)[0] if cluster.listen in cluster.routes else None


def _shake_hands(dials: ssl.SSLContext, dialled: ssl.SSLContext, host: str | None) -> None:
    """Raise `ssl.SSLError` on failure."""
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
