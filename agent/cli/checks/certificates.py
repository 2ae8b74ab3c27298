"""Certificates: until when they are valid, and whether the clock can be believed that says so. Pure; the time
is handed in.

Only the validity is read, from the DER encoding as RFC 5280 (4.1) lays it out.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from agent.cli.checks.clock import is_set
from agent.cli.checks.finding import Finding, failure, ok, warning

GROUP: Final = "certificates"
_SOON: Final = timedelta(days=30)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_SET_CLOCK: Final = "set the clock: let chrony or systemd-timesyncd run, or use `date --set`"


class Validity(NamedTuple):
    """From when until when a certificate is valid."""

    begins: datetime
    ends: datetime


def validities(pem: str) -> list[Validity]:
    """Those of all certificates in a PEM file. Raises `ValueError` where there is none, or one is damaged."""
    found = [validity(ssl.PEM_cert_to_DER_cert(one)) for one in _PEM.findall(pem)]
    if not found:
        raise ValueError("holds no certificate in PEM")
    return found


def validity(der: bytes) -> Validity:
    """When a certificate is valid. Raises `ValueError`."""
    certificate, _ = _element(der, 0, _SEQUENCE)
    body, _ = _element(certificate, 0, _SEQUENCE)
    at = 0
    if body[:1] == bytes([_VERSION]):
        _, at = _element(body, at)
    for _ in ("serial number", "signature", "issuer"):
        _, at = _element(body, at)
    both, _ = _element(body, at, _SEQUENCE)
    begins, at = _element(both, 0)
    ends, _ = _element(both, at)
    return Validity(_time(both[0], begins), _time(both[at], ends))


def _element(data: bytes, at: int, tag: int | None = None) -> tuple[bytes, int]:
    """The content of the DER element at an offset, and the offset behind it."""
    if len(data) < at + 2 or (tag is not None and data[at] != tag):
        raise ValueError("is not a certificate")
    length, start = data[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(data[start : start + octets], "big"), start + octets
    if len(data) < start + length:
        raise ValueError("is cut off")
    return data[start : start + length], start + length


def _time(tag: int, content: bytes) -> datetime:
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("has no validity")
    found = datetime.strptime(content.decode("ascii", "replace"), form).replace(tzinfo=UTC)
    if tag == _UTC_TIME and found.year >= 2050:  # RFC 5280: two digits from 50 on are of the century before
        found = found.replace(year=found.year - 100)
    return found


def judge(name: str, one: Validity, now: datetime) -> Finding:
    """What to say of a certificate at this time by the machine's clock."""
    if now < one.begins and not is_set(now.timestamp()):
        return failure(
            GROUP,
            f"{name} is called not yet valid because the clock is not set: it says {now:%Y-%m-%d}",
            _SET_CLOCK,
        )
    if now < one.begins:
        return failure(
            GROUP,
            f"{name} is not valid before {one.begins:%Y-%m-%d %H:%M} UTC, and the clock says "
            f"{now:%Y-%m-%d %H:%M}",
            "compare the clock with another one; if it is right, take a certificate that is valid now",
        )
    if now > one.ends:
        return failure(GROUP, f"{name} expired on {one.ends:%Y-%m-%d %H:%M} UTC", "renew it")
    if one.ends - now < min(_SOON, (one.ends - one.begins) / 3):
        left = (one.ends - now).days
        return warning(GROUP, f"{name} expires in {left} days, on {one.ends:%Y-%m-%d}", "renew it")
    return ok(GROUP, f"{name} is valid until {one.ends:%Y-%m-%d}")
