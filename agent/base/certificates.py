"""Reads the validity of certificates in PEM or DER (RFC 5280, 4.1)."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from agent.base.files import open_regular

_SOON: Final = timedelta(days=30)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


class Validity(NamedTuple):
    begins: datetime
    ends: datetime

    @property
    def renewal(self) -> datetime:
        """The time to renew: 30 days before the end, or a third of a shorter life."""
        return self.ends - min(_SOON, (self.ends - self.begins) / 3)


def validities(pem: str) -> list[Validity]:
    """Return the validity of each certificate in PEM. Raises `ValueError` for none or a damaged one."""
    found = [validity(ssl.PEM_cert_to_DER_cert(block)) for block in _PEM.findall(pem)]
    if not found:
        raise ValueError("holds no certificate in PEM")
    return found


def validity_of_file(path: Path, now: datetime, *, authorities: bool) -> Validity:
    """Return the effective validity of a PEM or DER file. Raises `OSError` and `ValueError`.

    A chain is limited by its first end and last start; of `authorities` the longest counts.
    """
    with open_regular(path) as file:
        data = file.read()
    try:
        found = validities(data.decode("ascii", "replace"))
    except ValueError:
        if data[:1] != bytes([_SEQUENCE]):
            raise
        found = [validity(data)]
    if authorities:
        return max(found, key=lambda one: one.ends)
    return max(found, key=lambda one: (one.begins > now, -one.ends.timestamp()))


def validity(der: bytes) -> Validity:
    """Return a DER certificate's validity. Raises `ValueError`."""
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
    """Return a DER element's content and the offset after it."""
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
    time = datetime.strptime(content.decode("ascii", "replace"), form).replace(tzinfo=UTC)
    if tag == _UTC_TIME and time.year >= 2050:  # RFC 5280: two digits from 50 on are of the century before
        time = time.replace(year=time.year - 100)
    return time
