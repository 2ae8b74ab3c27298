"""Tracks one discarding class: its index and record on disk. No network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from agent.base.files import write_private
from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    H_RESENT,
    ContractError,
    dead_subject,
    leaf_subjects,
    parse_message_id,
)
from agent.jetstream import StreamInfo
from agent.jetstream.readers import StoredHeaders
from agent.leaf.ledger.evictions import (
    FULL,
    MAX_DOUBTFUL,
    MAX_WAITING,
    PURGED,
    VERSION,
    EvictionRecord,
    EvictionVerdict,
    Index,
    IndexedMessage,
    StreamObservation,
    judge,
    remember,
)

_FLUSH_EVERY: Final = 10_000

log = structlog.get_logger("ledger")


class EvictionTracker:
    """Tracks one class in `directory`. All but `stored` raise `OSError`."""

    def __init__(self, directory: Path, domain: str, cls: str, run: str) -> None:
        self._path = directory / f"discards-{cls}.json"
        self._own = leaf_subjects(domain, cls).removesuffix(">") + "_"
        self._dead = dead_subject(domain, cls, "")
        self._cls, self._run = cls, run
        self._index = Index(directory / f"discards-{cls}.index")
        self._saved = b""
        self._read = 0
        self._later: list[IndexedMessage] = []
        self._overflowed = False
        self.claims = EvictionRecord()
        self.loaded = False

    def load(self, info: StreamInfo) -> int | None:
        """Load the state for the present stream; returns the sequence above which to read it, None if not
        needed.

        Call `taken_up` afterwards. An interrupted read continues at the next load.
        """
        began = self.loaded
        self._later, self._overflowed = [], False
        if not began:
            self._load()
        self.loaded = False
        if self.claims.created != info.created or self._index.top > info.last:
            self._index.clear()
            self.claims.begin(info.created, max(0, info.first - 1))
            self.save(self.content())
        elif began:
            self.loaded = True
            return None
        return max(self._index.top, info.first - 1)

    def _load(self) -> None:
        try:
            self._saved = self._path.read_bytes()
            claims = msgspec.json.decode(self._saved, type=EvictionRecord)
            if claims.version != VERSION:
                raise msgspec.ValidationError(f"it has version {claims.version}, and {VERSION} is read here")
            self.claims = claims
        except FileNotFoundError:
            self._saved = b""
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("eviction record lost", path=str(self._path), error=str(error))
        self._index.load()
        for _ in self._pieces(0, self.claims.judged):
            pass

    def read(self, message: StoredHeaders) -> None:
        """Add a message of the stream."""
        if message.subject.startswith(self._own):
            self._index.add(_entry(message, message.subject.startswith(self._dead)))
            self._read += 1
            if self._read % _FLUSH_EVERY == 0:
                with contextlib.suppress(OSError):  # `taken_up` says so
                    self._index.flush()

    @property
    def top(self) -> int:
        """Highest known sequence."""
        return self._index.top

    def taken_up(self) -> None:
        """Save the completed read at once: of an eviction before that, only the sequence is known. It is
        `loaded` unless too many messages were stored meanwhile; then those above `top` must be read too.
        Raises `OSError`.
        """
        top = self.top
        complete = not self._overflowed
        for entry in self._later if complete else ():
            if entry.seq > top:
                self._index.add(entry)
        self._later, self._overflowed = [], False
        self._index.flush()
        self.loaded = complete

    def stored(self, entry: IndexedMessage) -> None:
        """Add a stored agent message; waits while the stream is being read, to keep order."""
        if self.loaded:
            self._index.add(entry)
        elif len(self._later) < MAX_WAITING:
            self._later.append(entry)
        else:
            self._overflowed = True

    def trims(self, first: int, last: int, epoch: str) -> None:
        """Record a coming purge of messages that the hub confirmed in this epoch.

        Save it before the purge, whose answer may come after a look or the agent's end.
        """
        self._keep_trimmed_in(epoch)
        # The purge before failed, or this one goes on behind it.
        trimmed = self.claims.trimmed
        if trimmed and first <= trimmed[-1][1] + 1:
            begin, end = trimmed.pop()
            first, last = min(begin, first), max(end, last)
        trimmed.append((first, last))

    def _keep_trimmed_in(self, epoch: str) -> None:
        """Forget trims of earlier epochs; the link begins after what the hub has."""
        if self.claims.trimmed_in != epoch:
            self.claims.trimmed, self.claims.trimmed_in = [], epoch

    def look(self, seen: StreamObservation, max_bytes: int) -> dict[str, int]:
        """Judge evictions since the last look; returns claimed readings by reason."""
        self._index.flush()  # a disk that takes none keeps the claims as they are
        self._keep_trimmed_in(seen.epoch)
        for first, last in self.claims.trimmed:
            if first - 1 <= self.claims.judged:
                self.claims.taken = max(self.claims.taken, last)
        verdict = judge(self.claims, seen)
        reason = FULL if seen.info.bytes * 2 >= max_bytes else PURGED
        counted = 0
        if verdict.settled:
            counted = self._settle(verdict.taken, reason)
        else:
            self.claims.doubtful = [entry for entry in self.claims.doubtful if entry.seq > verdict.taken]
        begin = self.claims.judged
        for first, last in self.claims.trimmed:
            counted += self._gone(begin, min(first - 1, verdict.gone), verdict, reason)
            begin = max(begin, min(first - 1, verdict.gone))
            for _ in self._pieces(begin, min(last, verdict.gone)):
                begin = min(last, verdict.gone)
        counted += self._gone(begin, verdict.gone, verdict, reason)
        remember(self.claims, seen, verdict)
        self.claims.trimmed = [(first, last) for first, last in self.claims.trimmed if last > verdict.gone]
        self.claims.forget_runs(self._run)
        return {reason: counted} if counted else {}

    def content(self) -> bytes:
        """Return the record for `save`, after writing new entries."""
        self._index.flush()
        return msgspec.json.encode(self.claims)

    def save(self, data: bytes) -> None:
        """Write the record, in a thread."""
        if data != self._saved:
            write_private(self._path, data)
            self._saved = data

    def tidy(self) -> None:
        """Drop index entries covered by the saved record."""
        self._index.compact()

    def _pieces(self, begin: int, last: int) -> Iterator[tuple[list[IndexedMessage], int, int]]:
        while begin < last:
            entries, end = self._index.front(last)
            yield entries, begin + 1, end
            self._index.drop()
            begin = max(begin, end)

    def _gone(self, begin: int, last: int, verdict: EvictionVerdict, reason: str) -> int:
        """Process messages after `begin` up to `last` that the agent did not trim."""
        return sum(
            self._piece(entries, first, end, verdict.taken, verdict.doubtful, reason)
            for entries, first, end in self._pieces(begin, last)
        )

    def _piece(
        self, entries: list[IndexedMessage], first: int, last: int, taken: int, doubtful: int, reason: str
    ) -> int:
        own = {entry.seq: entry for entry in entries}
        for seq in range(max(first, taken + 1), min(last, doubtful) + 1):
            self.claims.doubtful.append(own.pop(seq, IndexedMessage(seq, readings=1)))
        counted = 0
        if len(self.claims.doubtful) > MAX_DOUBTFUL:
            counted += self._settle(taken, reason)
        lost = [entry for entry in own.values() if entry.seq > max(taken, doubtful)]
        first = max(first, taken + 1, doubtful + 1)
        counted += sum(self.claims.claim(entry, reason) for entry in lost)
        if first <= last:
            direct = last - first + 1 - sum(1 for entry in lost if entry.seq >= first)
            self.claims.claim_sequences(first, last, direct, reason)
            counted += direct
        return counted

    def _settle(self, taken: int, reason: str) -> int:
        """Claim doubtful messages except those taken."""
        counted = 0
        for entry in self.claims.doubtful:
            if entry.seq <= taken:
                continue
            direct = 1 if not entry.run and entry.readings else 0
            counted += direct + self.claims.claim(entry, reason)
            self.claims.claim_sequences(entry.seq, entry.seq, direct, reason)
        self.claims.doubtful = []
        return counted


def _entry(message: StoredHeaders, dead: bool) -> IndexedMessage:
    """Convert a message for the index. Republished ones and dead letters have no readings."""
    try:
        ident = parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
        count = int(message.headers.get(H_COUNT, "0"))
    except (ContractError, ValueError):
        return IndexedMessage(message.seq)
    if H_RESENT in message.headers:
        return IndexedMessage(message.seq)
    return IndexedMessage(message.seq, ident.run, ident.n, 0 if dead else count)
