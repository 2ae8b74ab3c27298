"""Makes one attempt to read a fixed stream range with a consumer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import (
    Frames,
    ProtocolError,
    RangeLost,
    Records,
    ServerReply,
    Unreachable,
    WireError,
    deliveries,
    header,
    status,
)
from hub_jobs.source.streams import Columns, joined, stream_info

PULL_ROWS: Final = 16_384
"""Records per pull; two pulls are outstanding and returned together."""

_SECOND_NS: Final = 1_000_000_000
_HEARTBEAT_NS: Final = _SECOND_NS // 2
_STALL_S: Final = 30
"""A pull's expiry; an empty one shows a live server that does not deliver."""
_INACTIVE_S: Final = 120
"""The server deletes the consumer after this inactivity, which also limits a reader's pause."""

_UNHEARD_S: Final = 5.0
"""Time after which a consumer that no server of a cluster knows is gone."""
_AGAIN_S: Final = 0.05

_IDLE, _EXPIRED, _CONFLICT, _NO_RESPONDERS = 100, 408, 409, 503
_TOO_LARGE: Final = "message size exceeds maxbytes"
_COMPLETED: Final = "batch completed"


class RangeReader:
    """One attempt at a range: its consumer, position, and proof of completeness."""

    def __init__(
        self,
        conn: Connection,
        stream: str,
        first: int,
        last: int,
        filters: list[str],
        pull_bytes: int,
        allow_lost: bool,
    ) -> None:
        self._conn = conn
        self._stream = stream
        self._first = first
        self._last = last
        self._filters = filters
        self._pull_bytes = pull_bytes
        self._allow_lost = allow_lost
        self._consumer = f"read-{secrets.token_hex(8)}"
        self._sid, self._inbox = conn.subscribe()
        self._position = first - 1
        self._delivered = 0
        self._pending = 0
        self._done = False
        self._too_large = False
        self._asked: list[int] = []
        self._opened_at = 0.0
        self._unheard = False
        self._gaps: list[tuple[int, int]] = []
        self.server = ""
        """The consumer's server, in a cluster."""
        self.start = first
        """The first sequence from `first` that this server's replica may have."""

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Return missing sequences as (first, last). Unknown with filtered subjects."""
        rest = [(self._position + 1, self._last)] if self._position < self._last else []
        return self._gaps + rest

    def open(self, created: str | None) -> None:
        """Create the consumer and check that the stream is the planned one."""
        config = {
            "name": self._consumer,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._first,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_S * _SECOND_NS,
        }
        if self._filters:
            config["filter_subjects"] = self._filters
        answer = self._conn.api(
            f"CONSUMER.CREATE.{self._stream}.{self._consumer}",
            {"stream_name": self._stream, "config": config, "action": "create"},
        )
        self._opened_at = time.monotonic()
        self.server = str((answer.get("cluster") or {}).get("leader", ""))
        self.start = int(answer["delivered"]["stream_seq"]) + 1
        self._pending = int(answer.get("num_pending", 0))
        self._done = self._pending == 0
        # Asked only now: a stream that is recreated after this takes the consumer with it.
        info = stream_info(self._conn, self._stream)
        if created is not None and info.created != created:
            raise RangeLost(
                f"stream {self._stream} was recreated at {info.created}; the range was planned on the one of "
                f"{created}, so its sequences mean other messages now"
            )
        if info.last_seq < self._last:
            raise self._lost(f"it ends at {info.last_seq}, below the range: it was restored or recreated")
        self.check_first(info.first_seq, self._first)

    def read(self) -> Iterator[Columns]:
        """Yield the range, two pulls at a time."""
        while not self._done:
            start = self._position + 1
            columns = self._round()
            if self._filters:
                self.check_first(stream_info(self._conn, self._stream).first_seq, start)
            if columns.seqs.size:
                yield columns
            elif self._unheard:
                time.sleep(_AGAIN_S)
            elif not self._done and not self._too_large:
                raise Unreachable(
                    f"stream {self._stream}: nothing after {self._position} came in {_STALL_S} s"
                )

    def close(self) -> None:
        """Delete the consumer; on failure it expires."""
        with suppress(WireError):
            self._conn.unsubscribe(self._sid)
            self._conn.api(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")

    def _round(self) -> Columns:
        """Finish two pulls before the caller gets the records.

        A server that can't send for ten seconds disconnects, and a caller may be slow.
        """
        expected, came = self._pull(), 0
        self._too_large = self._unheard = False
        pieces: list[Columns] = []
        while not self._done and came < expected:
            frames = Frames()
            try:
                self._conn.receive(frames, self._sid, time.monotonic() + self._conn.timeout)
            except TimeoutError:
                raise Unreachable(
                    f"stream {self._stream}: the server was silent for {self._conn.timeout:g} s after "
                    f"sequence {self._position}"
                ) from None
            for records in frames.records():
                pieces.append(self._take(records))
                came += len(records.replies)
            for answer in frames.answers:
                expected -= self._ended(answer)
        self._too_large = self._too_large and not came
        return joined(pieces)

    def _pull(self) -> int:
        """Send up to two pulls and return the requested records."""
        left = self._last - self._position
        if self._too_large:
            batches = [1]
        else:
            batches = [rows for rows in (min(PULL_ROWS, left), min(PULL_ROWS, left - PULL_ROWS)) if rows > 0]
        self._asked = batches
        for number, rows in enumerate(batches):
            request = {"batch": rows, "expires": _STALL_S * _SECOND_NS, "idle_heartbeat": _HEARTBEAT_NS}
            if not self._too_large:
                request["max_bytes"] = self._pull_bytes
            self._conn.publish(
                f"{self._conn.server.api_prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
                f"{self._inbox}.{number}",
                json.dumps(request).encode(),
            )
        return sum(batches)

    def _take(self, records: Records) -> Columns:
        count = len(records.replies)
        try:
            delivery = deliveries(records.replies)
        except ProtocolError as error:
            raise WireError(f"stream {self._stream}: {error}") from error
        due = (self._delivered + 1, self._delivered + count)
        if (delivery.first_consumer_seq, delivery.last_consumer_seq) != due:
            raise Unreachable(f"stream {self._stream}: the server left out records after {self._position}")
        last = int(delivery.seqs[-1])
        if not self._filters and last - self._position != count:
            self._note_gaps(delivery.seqs.tolist())
        self._delivered += count
        self._pending = delivery.pending
        self._position = last
        self._done = last >= self._last
        kept = int(np.searchsorted(delivery.seqs, self._last, side="right"))
        columns = records.subjects, records.headers, records.payloads, delivery.seqs, delivery.timestamps
        return Columns(*(column[:kept] for column in columns))

    def _ended(self, answer: ServerReply) -> int:
        """Return how many records a pull's status cancels."""
        if not answer.subject.startswith(self._inbox.encode()):
            return 0
        code, text = status(answer.headers)
        if code == _IDLE:
            # Only sent when the consumer looked for a record and found none.
            all_here = int(header(answer.headers, b"Nats-Last-Consumer") or -1) == self._delivered
            passed = int(header(answer.headers, b"Nats-Last-Stream") or 0) >= self._last
            self._done = self._done or (all_here and (passed or self._pending == 0))
            return 0
        if code == _NO_RESPONDERS and self._new:
            self._unheard = True
            return self._asked[int(answer.subject.rpartition(b".")[2])]
        reason = text.lower() if code == _CONFLICT else ""
        self._too_large = self._too_large or reason == _TOO_LARGE
        if code == _EXPIRED or reason in (_TOO_LARGE, _COMPLETED):
            return int(header(answer.headers, b"Nats-Pending-Messages") or 0)
        raise Unreachable(
            f"stream {self._stream}: the server ended the read at {self._position}: {code} {text}".rstrip()
        )

    @property
    def _new(self) -> bool:
        """Whether other servers of a cluster may not know the consumer yet.

        A server answers a request for which it knows no interest with 503, and interest crosses a route after
        the consumer was created (seen on nats-server 2.15.1, server/client.go).
        """
        return not self._delivered and time.monotonic() < self._opened_at + _UNHEARD_S

    def _note_gaps(self, seqs: list[int]) -> None:
        before = self._position
        for seq in seqs:
            if seq != before + 1 and before < self._last:
                self._gaps.append((before + 1, min(seq - 1, self._last)))
            before = seq

    def check_first(self, first_seq: int, needed: int) -> None:
        """Raise `RangeLost` when the stream begins after a needed sequence."""
        if first_seq > needed and not self._allow_lost:
            raise self._lost(f"it begins at {first_seq} now, and {needed} was to be read")

    def _lost(self, reason: str) -> RangeLost:
        return RangeLost(f"stream {self._stream}, sequences {self._first} to {self._last}: {reason}")
