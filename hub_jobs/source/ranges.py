"""Reading a fixed range of a stream through a consumer of its own, whole or not at all.

A range is complete when the server has shown that its consumer passed the last sequence, its consumer
sequences came without a hole, and every sequence that did not come is one the stream says it no longer has.
Everything else raises. It does not reconnect: the range is fixed, so reading it again gives the same rows.
"""

from __future__ import annotations

import json
import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
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
from hub_jobs.source.streams import Columns, joined, leader_state, stream_info

PULL_ROWS: Final = 16_384
"""Records asked for by one pull; two are outstanding at once and are handed out together."""

_SECOND_NS: Final = 1_000_000_000
_HEARTBEAT_NS: Final = _SECOND_NS // 2
_STALL_S: Final = 30
"""A pull expires after this. One that brought nothing means that the server is alive and does not deliver."""
_INACTIVE_S: Final = 120
"""The consumer of a reader that died goes away by itself after this; so may a reader pause this long."""

_DRAWS: Final = 64
"""Consumers by which the copies are asked, each given to a server by chance. Of three servers one is given
none of so many once in 10^11."""

_IDLE, _EXPIRED, _CONFLICT = 100, 408, 409
_TOO_LARGE: Final = "message size exceeds maxbytes"
_COMPLETED: Final = "batch completed"


def read_columns(
    conn: Connection,
    stream: str,
    first: int,
    last: int,
    *,
    filter_subjects: Sequence[str] = (),
    max_bytes: int = 8 << 20,
    created: str | None = None,
    allow_lost: bool = False,
    ask_copies: bool = False,
) -> Iterator[Columns]:
    """The records with sequences `first` to `last`, both included, in order, by column. None of them is
    empty.

    At most `max_bytes` bytes are on their way (a single larger message is taken nevertheless), and none while
    the caller holds some: it may pause for two minutes. Deleted sequences are passed over when the stream
    says that they are. `created` is the history (`StreamInfo.created`) the range was planned on;
    `allow_lost` passes over what was purged or expired. `ask_copies` takes nothing for gone that a copy on
    another server has; it counts where no subjects are filtered and the stream drops nothing by itself.

    Raises RangeLost when rows are gone from the start, the end or under the reader, or the stream is another
    one; Unreachable when the server stops, restarts or stalls, or a copy has what is missing or can't be
    asked; ApiError when it refuses the consumer; Denied when this identity may not make one. It never ends
    early without raising.
    """
    if first > last:
        return
    reader = _Reader(conn, stream, first, last, list(filter_subjects), max(max_bytes // 2, 1), allow_lost)
    try:
        reader.open(created)
        yield from reader.read()
        if not filter_subjects:
            reader.check_gaps(ask_copies)
    finally:
        reader.close()


class _Reader:
    """One attempt at one range: its consumer, its position, and the proof that nothing was left out."""

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
        self._gaps: list[tuple[int, int]] = []
        self._server = ""

    def open(self, created: str | None) -> None:
        """Make the consumer and check that the stream still is what the range was planned on."""
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
        self._server = str((answer.get("cluster") or {}).get("leader", ""))
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
        self._check_first(info.first_seq, self._first)

    def read(self) -> Iterator[Columns]:
        """Hand out the range, two pulls at a time."""
        while not self._done:
            start = self._position + 1
            columns = self._round()
            if self._filters:
                self._check_first(stream_info(self._conn, self._stream).first_seq, start)
            if columns.seqs.size:
                yield columns
            elif not self._done and not self._too_large:
                raise Unreachable(
                    f"stream {self._stream}: nothing after {self._position} came in {_STALL_S} s"
                )

    def close(self) -> None:
        """Remove the consumer. When that fails it goes away by itself."""
        with suppress(WireError):
            self._conn.unsubscribe(self._sid)
            self._conn.api(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")

    def _round(self) -> Columns:
        """Two pulls until both have ended, so that nothing is on its way while the caller holds the records.

        A server that can't get rid of its bytes for ten seconds closes the connection; a caller that writes
        to a slow place must not bring that about.
        """
        expected, came = self._pull(), 0
        self._too_large = False
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
        """Send up to two pulls; how many records they ask for."""
        left = self._last - self._position
        if self._too_large:
            batches = [1]
        else:
            batches = [rows for rows in (min(PULL_ROWS, left), min(PULL_ROWS, left - PULL_ROWS)) if rows > 0]
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
        """The records of the range among those that came."""
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
        """Take a pull's status; how many of its records will not come any more."""
        if not answer.subject.startswith(self._inbox.encode()):
            return 0
        code, text = status(answer.headers)
        if code == _IDLE:
            # Only sent when the consumer looked for a record and found none.
            all_here = int(header(answer.headers, b"Nats-Last-Consumer") or -1) == self._delivered
            passed = int(header(answer.headers, b"Nats-Last-Stream") or 0) >= self._last
            self._done = self._done or (all_here and (passed or self._pending == 0))
            return 0
        reason = text.lower() if code == _CONFLICT else ""
        self._too_large = self._too_large or reason == _TOO_LARGE
        if code == _EXPIRED or reason in (_TOO_LARGE, _COMPLETED):
            return int(header(answer.headers, b"Nats-Pending-Messages") or 0)
        raise Unreachable(
            f"stream {self._stream}: the server ended the read at {self._position}: {code} {text}".rstrip()
        )

    def _note_gaps(self, seqs: list[int]) -> None:
        before = self._position
        for seq in seqs:
            if seq != before + 1 and before < self._last:
                self._gaps.append((before + 1, min(seq - 1, self._last)))
            before = seq

    def check_gaps(self, ask_copies: bool) -> None:
        """Every sequence that did not come must be one the stream says it no longer has."""
        if self._position < self._last:
            self._gaps.append((self._position + 1, self._last))
        if not self._gaps:
            return
        first_seq, deleted, copies = leader_state(self._conn, self._stream)
        for low, high in self._gaps:
            self._check_first(first_seq, low)
            low = max(low, first_seq)
            if low <= high and bisect_right(deleted, high) - bisect_left(deleted, low) != high - low + 1:
                raise Unreachable(
                    f"stream {self._stream} has records in {low} to {high} and did not deliver them"
                )
        if ask_copies:
            self._check_copies(copies)

    def _check_copies(self, copies: Mapping[str, bool]) -> None:
        """Raise where a copy has a record of a gap, or one can't be asked. Seen on 2.15.1: a server whose
        disk has damaged a block calls its messages deleted, or begins after them, as leader for all, and
        fetches them from no other one."""
        lows, highs = np.array(self._gaps).T
        lacking = f"stream {self._stream}: {self._server} lacks records in {lows[0]} to {highs[-1]}"
        unasked = copies.keys() - {self._server}
        if offline := [name for name in unasked if not copies[name]]:
            raise Unreachable(f"{lacking}; {offline[0]}, which may have them, is offline: start it")
        draws = 0
        while unasked:
            if (draws := draws + 1) > _DRAWS:
                raise Unreachable(f"{lacking}; {min(unasked)}, which may have them, could not be asked")
            range_ = self._stream, int(lows[0]), int(highs[-1])
            copy = _Reader(self._conn, *range_, [], self._pull_bytes, allow_lost=True)
            try:
                copy.open(None)
                for columns in copy.read() if copy._server in unasked else ():
                    gap = np.searchsorted(lows, columns.seqs, side="right") - 1
                    if (columns.seqs <= highs[gap]).any():
                        raise Unreachable(
                            f"{lacking} that {copy._server} has; if this stays, start the server whose disk "
                            "fails with an empty store"
                        )
            finally:
                copy.close()
            unasked -= {copy._server}

    def _check_first(self, first_seq: int, needed: int) -> None:
        if first_seq > needed and not self._allow_lost:
            raise self._lost(f"it begins at {first_seq} now, and {needed} was to be read")

    def _lost(self, reason: str) -> RangeLost:
        return RangeLost(f"stream {self._stream}, sequences {self._first} to {self._last}: {reason}")
