"""A batch: one message of NDJSON readings, its identity and its headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.contract.checks import (
    ContractError,
    check_class,
    check_run,
    whole_number,
)
from agent.contract.names import VERSION
from agent.contract.request import (
    H_REQUEST_DIGESTS,
    H_REQUESTS,
    Request,
    encode_digests,
    parse_requests,
)

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
        """The headers as they go on the wire."""
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
            if (digests := encode_digests(self.requests)) is not None:
                headers[H_REQUEST_DIGESTS] = digests
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
        requests=parse_requests(headers.get(H_REQUESTS, ""), headers.get(H_REQUEST_DIGESTS)),
        position=headers.get(H_POSITION),
    )
