"""A batch: one message of NDJSON readings, its identity, its headers, and the push requests in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from agent.contract.checks import (
    VERSION,
    ContractError,
    check_class,
    check_request_key,
    check_run,
    whole_number,
)

__all__ = [
    "H_CLOCK",
    "H_CONTENT_TYPE",
    "H_COUNT",
    "H_ENCODING",
    "H_MESSAGE_ID",
    "H_POSITION",
    "H_REQUESTS",
    "H_RESENT",
    "H_SEALED_AT",
    "H_SOURCE",
    "H_VERSION",
    "MAX_BATCH_BYTES",
    "MAX_BATCH_READINGS",
    "MAX_BODY_BYTES",
    "MAX_UNPACKED_BYTES",
    "NDJSON",
    "REQUEST_BYTES",
    "ZSTD",
    "BatchHeaders",
    "Clock",
    "MessageId",
    "Request",
    "divide_mark",
    "make_request",
    "parse_batch_headers",
    "parse_clock",
    "parse_message_id",
    "parse_requests",
    "part_count",
    "request_part",
    "request_scope",
]

H_REQUESTS: Final = "Petiole-Requests"

REQUEST_BYTES: Final = 67
"""Bytes that a request takes in the header, in addition to its key."""

_DIGEST_BYTES: Final = 16
_SCOPE_BYTES: Final = 8
_COUNT_BYTES: Final = 2
_LAYOUT_BYTES: Final = 6
_PART_BYTES: Final = _COUNT_BYTES + _LAYOUT_BYTES
_ENTRY: Final = re.compile(
    rf"([0-9a-f]{{{2 * _DIGEST_BYTES}}})([0-9a-f]{{{2 * _PART_BYTES}}})?"
    rf"\.([0-9a-f]{{{2 * _SCOPE_BYTES}}}):(.*)\Z"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A key is its sender's within `scope`; `digest` is of all that tells the readings of the request from
    others. `part` is empty where all readings of the request go to one class, otherwise as `request_part`
    returns it."""

    key: str
    digest: bytes
    scope: str
    part: bytes = b""

    @property
    def mark(self) -> bytes:
        """Distinguishes its content and its part."""
        return self.digest + self.part

    def __str__(self) -> str:
        return f"{self.mark.hex()}.{self.scope}:{self.key}"


def request_scope(*parts: str) -> str:
    """The scope of the keys of one input, or of one of its senders."""
    return _fed(_SCOPE_BYTES, parts).hexdigest()


def make_request(key: str, scope: str, body: bytes, *about: str) -> Request:
    """The request of a `body`, whose readings depend on what is said `about` it, too."""
    digest = _fed(_DIGEST_BYTES, about)
    digest.update(body)
    return Request(key, digest.digest(), scope)


def request_part(classes: Iterable[str]) -> bytes:
    """Encode which line of a request goes to which class: `classes` has the class of each line, an empty text
    for a line that is dropped. Empty for a single class; otherwise the number of classes and a hash."""
    lines = tuple(classes)
    count = len(set(lines) - {""})
    if count < 2:
        return b""
    layout = blake2b("\n".join(lines).encode(), digest_size=_LAYOUT_BYTES)
    return count.to_bytes(_COUNT_BYTES, "big") + layout.digest()


def divide_mark(mark: bytes) -> tuple[bytes, bytes]:
    """Divide the mark of a request into its content and its part."""
    return mark[:_DIGEST_BYTES], mark[_DIGEST_BYTES:]


def part_count(part: bytes) -> int:
    """Read how many classes a request is split over, from its part."""
    return int.from_bytes(part[:_COUNT_BYTES], "big")


def parse_requests(text: str) -> tuple[Request, ...]:
    """Read the header `Petiole-Requests`; raises `ContractError`."""
    return tuple(map(_request, text.split()))


def _request(entry: str) -> Request:
    found = _ENTRY.match(entry)
    if found is None:
        raise ContractError(f"{H_REQUESTS} entry {entry!r:.160} is not <digest>.<scope>:<key>")
    return Request(
        check_request_key(found[4]), bytes.fromhex(found[1]), found[3], bytes.fromhex(found[2] or "")
    )


def _fed(size: int, parts: tuple[str, ...]) -> blake2b:
    """A hash of these parts, each with its length, so that no two lists are alike."""
    found = blake2b(digest_size=size)
    for part in parts:
        data = part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(4, "big"))
        found.update(data)
    found.update(b"\xff\xff\xff\xff")
    return found


MAX_BATCH_READINGS: Final = 5_000
MAX_BATCH_BYTES: Final = 256 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""What a batch may hold once decompressed; the jobs stop unpacking there."""

H_VERSION: Final = "Petiole-Version"
H_MESSAGE_ID: Final = "Nats-Msg-Id"
H_CONTENT_TYPE: Final = "Content-Type"
H_ENCODING: Final = "Content-Encoding"
H_COUNT: Final = "Petiole-Count"
H_SEALED_AT: Final = "Petiole-Sealed-At"
H_CLOCK: Final = "Petiole-Clock"
H_POSITION: Final = "Petiole-Position"
H_RESENT: Final = "Petiole-Resent"
"""On a batch that was published again: the sequence at which the leaf's stream first held it. Such a batch
says nothing of where its input is or which requests are new, so it carries none of these headers."""
H_SOURCE: Final = "Nats-Stream-Source"
NDJSON: Final = "application/x-ndjson"
ZSTD: Final = "zstd"


@dataclass(frozen=True, slots=True)
class MessageId:
    """The identity of a batch: `n` counts from 1 without gaps per class and run."""

    run: str
    cls: str
    n: int

    def __str__(self) -> str:
        return f"{self.run}-{self.cls}-{self.n}"


def parse_message_id(text: str) -> MessageId:
    """Read a batch's message id back; raises `ContractError`."""
    run, cls_and_n = text[:36], text[36:].split("-")
    if len(cls_and_n) != 3 or cls_and_n[0]:
        raise ContractError(f"message id {text!r:.160} is not <run>-<class>-<n>")
    number = whole_number(cls_and_n[2], "message id")
    if number < 1:
        raise ContractError(f"message id {text!r:.160} counts from 1")
    return MessageId(check_run(run), check_class(cls_and_n[1]), number)


@dataclass(frozen=True, slots=True)
class Clock:
    """What the agent knew of its clock: `monotonic` in ns of `CLOCK_BOOTTIME`, comparable within one kernel
    `boot` id."""

    synchronised: bool
    boot: str
    monotonic: int

    def __str__(self) -> str:
        answer = "yes" if self.synchronised else "no"
        return f"synchronised={answer}; boot={self.boot}; monotonic={self.monotonic}"


def parse_clock(text: str) -> Clock:
    """Read a `Petiole-Clock` header; keys that are not known are ignored. Raises `ContractError`."""
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(";"))
    if pairs.get("synchronised") not in ("yes", "no") or not pairs.get("boot"):
        raise ContractError(
            f"{H_CLOCK} {text!r:.160} is not 'synchronised=yes|no; boot=<id>; monotonic=<ns>'"
        )
    return Clock(
        pairs["synchronised"] == "yes", pairs["boot"], whole_number(pairs.get("monotonic"), "monotonic")
    )


@dataclass(frozen=True, slots=True)
class BatchHeaders:
    """The headers of one batch. `sealed_at` is ns since 1970 by the edge's clock; `position` is where a pull
    input goes on after this batch, opaque to all but that input."""

    id: MessageId
    count: int
    sealed_at: int
    clock: Clock
    compressed: bool = False
    requests: tuple[Request, ...] = ()
    position: str | None = None

    def encode(self) -> dict[str, str]:
        headers = {
            H_VERSION: str(VERSION),
            H_MESSAGE_ID: str(self.id),
            H_CONTENT_TYPE: NDJSON,
            H_COUNT: str(self.count),
            H_SEALED_AT: str(self.sealed_at),
            H_CLOCK: str(self.clock),
        }
        if self.compressed:
            headers[H_ENCODING] = ZSTD
        if self.requests:
            headers[H_REQUESTS] = " ".join(map(str, self.requests))
        if self.position is not None:
            if not self.position.isprintable() or not self.position.isascii():
                raise ContractError(f"{H_POSITION} {self.position!r} is not printable ASCII")
            headers[H_POSITION] = self.position
        return headers


def parse_batch_headers(headers: Mapping[str, str]) -> BatchHeaders:
    """Read a batch's headers back; headers that are not known are ignored. Raises `ContractError`."""
    if headers.get(H_VERSION) != str(VERSION):
        raise ContractError(f"{H_VERSION} {headers.get(H_VERSION)!r} is not known here; this is {VERSION}")
    if headers.get(H_CONTENT_TYPE) != NDJSON:
        raise ContractError(f"{H_CONTENT_TYPE} {headers.get(H_CONTENT_TYPE)!r} is not {NDJSON}")
    encoding = headers.get(H_ENCODING)
    if encoding not in (None, ZSTD):
        raise ContractError(f"{H_ENCODING} {encoding!r} is not {ZSTD}")
    return BatchHeaders(
        id=parse_message_id(headers.get(H_MESSAGE_ID, "")),
        count=whole_number(headers.get(H_COUNT), H_COUNT),
        sealed_at=whole_number(headers.get(H_SEALED_AT), H_SEALED_AT),
        clock=parse_clock(headers.get(H_CLOCK, "")),
        compressed=encoding == ZSTD,
        requests=parse_requests(headers.get(H_REQUESTS, "")),
        position=headers.get(H_POSITION),
    )
