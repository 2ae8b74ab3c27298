"""Which of several hub agents leads: a lease that is one message of the fleet's bucket, taken and renewed
only over the revision (sequence) that the writer has read. Pure: its times are seconds of the caller's own
clock, which must run on while the process is stopped or the machine sleeps (`CLOCK_BOOTTIME`).

The holder counts from before its request was sent, everybody else from after the answer was read, so the
holder's lease ends first by its own clock. The clocks need not agree, only run equally fast within `DRIFT`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from agent.contract import FLEET_BUCKET, VERSION, ContractError

LEASE: Final = f"$KV.{FLEET_BUCKET}.hub.lease"
"""A domain has no dot, so no leaf's record can stand here."""
SECONDS: Final = 3.0
"""For how long a lease holds. The loop of a busy agent stalls for less, and a takeover may take five."""
RENEW_EVERY: Final = 0.75
DRIFT: Final = 0.05
"""By how much the rates of two machines' clocks may differ; NTP slews a clock by 0.0005 at most."""

_NEVER: Final = float("-inf")
_UNREAD: Final = float("inf")


class Lease(Struct, frozen=True):
    """The record in the bucket; fields that a later version adds are ignored."""

    v: int
    term: int
    """Counts from 1; higher with each holder, and with each time that a holder had to begin again."""
    holder: str
    """The identity of an agent, which its state directory's lock keeps one process, and its server's name:
    machines of one image have one id, but no two servers of a cluster one name."""
    name: str
    """The name of the holder's NATS server, for people."""
    seconds: float
    """For how long the holder relies on it from when it sent this; 0 once it has let go."""
    connections: tuple[tuple[str, int], ...] = ()
    """The holder's connections, each as the id of a server and the number that the server gave it."""


def parse_lease(data: bytes) -> Lease:
    """The record that was stored. Raises `ContractError`."""
    try:
        lease = msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"the lease of the hub cannot be read: {error}") from None
    if lease.v != VERSION:
        raise ContractError(f"the lease of the hub has version {lease.v}, this agent knows {VERSION}")
    return lease


class Election:
    """What the agent `me`, whose server is `name`, knows of the lease, and whether it leads."""

    def __init__(self, me: str, name: str) -> None:
        self._me, self.name = me, name
        self._since = _UNREAD
        """Since when the lease is as it was read last."""
        self._until = _NEVER
        self.revision = 0
        """The revision that was read or written last; 0: there is no lease yet."""
        self.lease: Lease | None = None
        self._newest: Lease | None = None

    @property
    def before(self) -> Lease | None:
        """The lease whose holder may write still: that of the bucket, or a later one that was seen there
        before the bucket was deleted, purged or restored from a backup."""
        lease, newest = self.lease, self._newest
        return newest if lease is None or (newest is not None and newest.term > lease.term) else lease

    def leads(self, now: float) -> bool:
        """Whether this agent may write at `now`."""
        return now < self._until

    def observed(self, revision: int, lease: Lease | None, now: float, lacked: Lease | None = None) -> None:
        """The lease as it was read, the answer at `now`. Where the bucket's leader has none, `lacked` is that
        of another copy: its holder may write still, and is waited for."""
        if self._since == _UNREAD or revision != self.revision or (lease is None) != (self.lease is None):
            self._since = now
        if lease is None or lease.holder != self._me:
            self._until = _NEVER
        self.revision, self.lease = revision, lease
        self._newest = self.before
        if lacked is not None and (self._newest is None or lacked.term > self._newest.term):
            self._newest = lacked

    def may_take(self, now: float) -> bool:
        """Whether the lease is free, or the holder cannot rely on it any more."""
        lease = self.lease
        # What was seen last need not be the last one that there was, and a bucket without a lease may have
        # been purged of one before this agent was started.
        if lease is None or self.before is not lease:
            return now - self._since >= SECONDS * (1 + DRIFT)
        if lease.seconds <= 0 or lease.holder == self._me:
            return True
        return now - self._since >= lease.seconds * (1 + DRIFT)

    def next(self, now: float, connections: tuple[tuple[str, int], ...]) -> Lease:
        """The record to store over `revision` at `now`: a renewal while this agent leads, else a new term."""
        term = 0 if self.before is None else self.before.term
        if not self.leads(now):
            term += 1
        return Lease(VERSION, term, self._me, self.name, SECONDS, connections)

    def stored(self, revision: int, lease: Lease, sent: float) -> None:
        """The record of `next`, sent at `sent`, was stored at a revision."""
        self.revision, self.lease, self._newest, self._since = revision, lease, lease, sent
        self._until = sent + lease.seconds * (1 - DRIFT)

    def released(self, now: float) -> Lease | None:
        """The record by which this agent lets go, None if it does not lead; from here on it does not."""
        lease, leads = self.lease, self.leads(now)
        self._until = _NEVER
        return msgspec.structs.replace(lease, seconds=0.0) if leads and lease is not None else None
