"""Tracks one class whose stream evicts old messages: its index and record on disk. No network."""

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
    """The claims of one class in `directory`. Everything but `stored` raises `OSError`."""

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
        """Take up what is on disk for the stream as it is now; returns the sequence above which the stream
        must be read, None where it need not. `taken_up` is to be called when that is done. What is read until
        then is kept, also when it ends before: the next load goes on behind it."""
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
        """Take up a message that the stream holds."""
        if message.subject.startswith(self._own):
            self._index.add(_entry(message, message.subject.startswith(self._dead)))
            self._read += 1
            if self._read % _FLUSH_EVERY == 0:
                with contextlib.suppress(OSError):  # `taken_up` says so
                    self._index.flush()

    @property
    def top(self) -> int:
        """The highest sequence whose content is known."""
        return self._index.top

    def taken_up(self) -> None:
        """The stream has been read to its end. It is kept at once: of what goes before that, only the
        sequence could be named. Now it is `loaded`, unless more was stored meanwhile than is remembered: then
        what is above `top` has to be read too. Raises `OSError`."""
        top = self.top
        complete = not self._overflowed
        for entry in self._later if complete else ():
            if entry.seq > top:
                self._index.add(entry)
        self._later, self._overflowed = [], False
        self._index.flush()
        self.loaded = complete

    def stored(self, entry: IndexedMessage) -> None:
        """A message of the agent was stored. The index is in the order of the stream, so while that is read
        this one waits."""
        if self.loaded:
            self._index.add(entry)
        elif len(self._later) < MAX_WAITING:
            self._later.append(entry)
        else:
            self._overflowed = True

    def trims(self, first: int, last: int, epoch: str) -> None:
        """The agent is about to purge this much of the stream, all of which the hub has confirmed over this
        epoch. Call and save it before the purge: a look may come before the purge is answered, and so may the
        end of the agent."""
        self._keep_trimmed_in(epoch)
        # The purge before failed, or this one goes on behind it.
        trimmed = self.claims.trimmed
        if trimmed and first <= trimmed[-1][1] + 1:
            begin, end = trimmed.pop()
            first, last = min(begin, first), max(end, last)
        trimmed.append((first, last))

    def _keep_trimmed_in(self, epoch: str) -> None:
        """What was trimmed over an earlier epoch tells no more: the link begins behind what the hub has."""
        if self.claims.trimmed_in != epoch:
            self.claims.trimmed, self.claims.trimmed_in = [], epoch

    def look(self, seen: StreamObservation, max_bytes: int) -> dict[str, int]:
        """Judge what has gone since the last look; returns how many readings are claimed, by reason."""
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
        """The claims as `save` writes them; what was stored is written at once."""
        self._index.flush()
        return msgspec.json.encode(self.claims)

    def save(self, data: bytes) -> None:
        """Write the claims, in a thread."""
        if data != self._saved:
            write_private(self._path, data)
            self._saved = data

    def tidy(self) -> None:
        """Once the claims are saved, the index need not keep what they say."""
        self._index.compact()

    def _pieces(self, begin: int, last: int) -> Iterator[tuple[list[IndexedMessage], int, int]]:
        while begin < last:
            entries, end = self._index.front(last)
            yield entries, begin + 1, end
            self._index.drop()
            begin = max(begin, end)

    def _gone(self, begin: int, last: int, verdict: EvictionVerdict, reason: str) -> int:
        """The messages after `begin` up to `last` are gone, and the agent did not trim them."""
        return sum(
            self._piece(entries, first, end, verdict.taken, verdict.doubtful, reason)
            for entries, first, end in self._pieces(begin, last)
        )

    def _piece(
        self, entries: list[IndexedMessage], first: int, last: int, taken: int, doubtful: int, reason: str
    ) -> int:
        """The messages of a piece of the stream that is gone."""
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
        """What was in doubt is not at the hub, but for what was taken."""
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
    """A message as the index has it. One that was published again says nothing that the first did not, and
    dead letters are numbered like batches, but are not readings."""
    try:
        ident = parse_message_id(message.headers.get(H_MESSAGE_ID, ""))
        count = int(message.headers.get(H_COUNT, "0"))
    except (ContractError, ValueError):
        return IndexedMessage(message.seq)
    if H_RESENT in message.headers:
        return IndexedMessage(message.seq)
    return IndexedMessage(message.seq, ident.run, ident.n, 0 if dead else count)
