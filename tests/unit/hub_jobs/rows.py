"""Rows of bronze as tests make them."""

from __future__ import annotations

from typing import Any

import zstandard

from agent.contract import (
    BatchHeaders,
    Clock,
    Correction,
    Ledger,
    MessageId,
    Readings,
    StreamState,
    batch_subject,
    clock_subject,
    dead_subject,
)
from hub_jobs.tables.schemas import digest

RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER_RUN = "01890a5d-ac96-774b-bcce-b302099a8058"
SEALED_NS = 1_795_000_000_000_000_000
ARRIVED_US = 1_795_000_060_000_000
LINE = b'{"metric":"m","value":1}\n'
LEDGER = Ledger(
    *("edge-1", "normal", RUN, 4, ((1, 4),)),
    Readings(accepted=40, stored=40),
    StreamState("now", 1, 4),
    final=True,
)
"""The last record of an agent that stored four batches of ten readings."""


def header_block(headers: dict[str, str]) -> bytes:
    """Headers as they stand in a message."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def batch_headers(
    n: int,
    count: int,
    *,
    cls: str = "normal",
    run: str = RUN,
    compressed: bool = True,
    sealed: tuple[int, Clock] = (SEALED_NS, Clock(True, "boot", 1)),
) -> dict[str, str]:
    """The headers that the agent puts on a batch."""
    return BatchHeaders(MessageId(run, cls, n), count, *sealed, compressed).encode()


def row(payload: bytes, subject: str, headers: dict[str, str], **given: Any) -> dict[str, Any]:
    """A row of bronze as the refiner takes it."""
    return {
        "stream": "TELEMETRY_0",
        "created": "2026-11-21T00:00:00Z",
        "seq": 1,
        "arrived": ARRIVED_US,
        "subject": subject,
        "headers": header_block(headers),
        "payload": payload,
        "digest": digest(payload),
        "domain": "edge-1",
        "source_stream": "TEL_edge-1_normal",
        "source_identity": "abc",
        "source_seq": 7,
        "message_id": headers.get("Nats-Msg-Id"),
        "class": "normal",
        "run": None,
        "n": None,
        "count": None,
        **given,
    }


def batch_row(text: bytes, n: int | None = 1, count: int | None = None, **given: Any) -> dict[str, Any]:
    """A batch of the agent in `edge-1`."""
    lines = text.count(b"\n") if count is None else count
    identity = {"run": RUN, "n": n, "count": lines}
    payload = zstandard.compress(text)
    return row(
        payload,
        batch_subject("edge-1", "normal", "http"),
        batch_headers(n or 1, lines),
        **{**identity, **given},
    )


def dead_row(letters: bytes, n: int = 1, count: int | None = None) -> dict[str, Any]:
    """Dead letters of an input in `edge-1`."""
    return batch_row(letters, n, count) | {"subject": dead_subject("edge-1", "normal", "file")}


def correction_row(correction: Correction, **given: Any) -> dict[str, Any]:
    """What the agent of `edge-1` says of its clock."""
    return row(correction.encode(), clock_subject("edge-1", "normal"), {}, **given)


def direct_row(payload: bytes, **given: Any) -> dict[str, Any]:
    """A device's own message."""
    return row(payload, "tel.edge-1.normal.pump.pressure", {}, **given)


def ledger_row(ledger: Ledger, **given: Any) -> dict[str, Any]:
    """A record of a leaf's ledger."""
    return row(ledger.encode(), f"tel.{ledger.domain}.normal._ledger", {}, **given)


def numbered(*numbers: int, text: bytes = LINE * 10) -> list[dict[str, Any]]:
    """Batches of ten readings, each at the sequence of its number."""
    return [batch_row(text, n=n, source_seq=n) for n in numbers]
