"""A push request inside a batch: the key under which it may come again, and what tells it from others."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from agent.contract.checks import ContractError, check_request_key

H_REQUESTS: Final = "Petiole-Requests"
H_REQUEST_DIGESTS: Final = "Petiole-Request-Digests"
"""One entry for each of `Petiole-Requests`, in its order; older readers ignore it."""

REQUEST_BYTES: Final = 60
"""Bytes that a request takes in both headers, in addition to its key."""

_DIGEST_BYTES: Final = 16
_SCOPE_BYTES: Final = 8
_CRC: Final = re.compile(r"[0-9a-f]{8}\Z")
_DIGEST: Final = re.compile(rf"([0-9a-f]{{{2 * _DIGEST_BYTES}}})\.([0-9a-f]{{{2 * _SCOPE_BYTES}}})\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """A key is its sender's within `scope`; `digest` is of all that tells the readings of the request from
    others. A request that an older agent stored has neither, but the CRC-32 of its body."""

    key: str
    crc: int
    digest: bytes = b""
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.crc:08x}:{self.key}"


def request_scope(*parts: str) -> str:
    """The scope of the keys of one input, or of one of its senders."""
    return _fed(_SCOPE_BYTES, parts).hexdigest()


def make_request(key: str, scope: str, body: bytes, *about: str) -> Request:
    """The request of a `body`, whose readings depend on what is said `about` it, too."""
    digest = _fed(_DIGEST_BYTES, about)
    digest.update(body)
    return Request(key, zlib.crc32(body), digest.digest(), scope)


def encode_digests(requests: tuple[Request, ...]) -> str | None:
    """The header `Petiole-Request-Digests`; None where a request has no digest."""
    if not all(request.digest for request in requests):
        return None
    return " ".join(f"{request.digest.hex()}.{request.scope}" for request in requests)


def parse_requests(text: str, digests: str | None = None) -> tuple[Request, ...]:
    """Read both headers; raises `ContractError`."""
    entries = text.split()
    if digests is None:
        return tuple(Request(*_entry(entry)) for entry in entries)
    marks = digests.split()
    if len(marks) != len(entries):
        raise ContractError(f"{H_REQUEST_DIGESTS} has {len(marks)} entries for {len(entries)} requests")
    return tuple(Request(*_entry(entry), *_mark(mark)) for entry, mark in zip(entries, marks, strict=True))


def _entry(entry: str) -> tuple[str, int]:
    crc, _, key = entry.partition(":")
    if not _CRC.match(crc):
        raise ContractError(f"{H_REQUESTS} entry {entry!r:.160} is not <crc>:<key>")
    return check_request_key(key), int(crc, 16)


def _mark(entry: str) -> tuple[bytes, str]:
    found = _DIGEST.match(entry)
    if found is None:
        raise ContractError(f"{H_REQUEST_DIGESTS} entry {entry!r:.160} is not <digest>.<scope>")
    return bytes.fromhex(found[1]), found[2]


def _fed(size: int, parts: tuple[str, ...]) -> blake2b:
    """A hash of these parts, each with its length, so that no two lists are alike."""
    found = blake2b(digest_size=size)
    for part in parts:
        data = part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(4, "big"))
        found.update(data)
    found.update(b"\xff\xff\xff\xff")
    return found
