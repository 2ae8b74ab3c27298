"""Elects the leading hub agent by a lease record, written only over its read revision. Pure; `CLOCK_BOOTTIME`
seconds.

The holder counts from before its request, others from after their read, so its lease ends first. Clocks need
equal rates within `DRIFT`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from agent.contract import FLEET_BUCKET, VERSION, ContractError

LEASE: Final = f"$KV.{FLEET_BUCKET}.hub.lease"
"""No domain has a dot, so no leaf's record."""
SECONDS: Final = 3.0
"""Lease duration, above a busy loop's stalls."""
RENEW_EVERY: Final = 0.75
DRIFT: Final = 0.05
"""Largest difference of clock rates; NTP slews by 0.0005."""

_NEVER: Final = float("-inf")
_UNREAD: Final = float("inf")


class Lease(Struct, frozen=True):
    """The record."""

    v: int
    term: int
    """From 1, higher with each holder or restart."""
    holder: str
    """Agent id (locked state directory) and server name, as images share ids."""
    name: str
    """Holder's server, for people."""
    seconds: float
    """Holder's reliance since sending; 0 if released."""
    connections: tuple[tuple[str, int], ...] = ()
    """Holder's connections as server id and number."""


def parse_lease(data: bytes) -> Lease:
    """Parse the record. Raises `ContractError`."""
    try:
        lease = msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"the lease of the hub cannot be read: {error}") from None
    if lease.v != VERSION:
        raise ContractError(f"the lease of the hub has version {lease.v}, this agent knows {VERSION}")
    return lease


class Election:
    """What agent `me` at server `name` knows of the lease."""

    def __init__(self, me: str, name: str) -> None:
        self._me, self.name = me, name
        self._since = _UNREAD
        """Since when the lease is unchanged."""
        self._until = _NEVER
        self.revision = 0
        """Last revision; 0 for none."""
        self.lease: Lease | None = None
        self._newest: Lease | None = None

    @property
    def before(self) -> Lease | None:
        """The lease whose holder may still write, even after the bucket was deleted or restored."""
        lease, newest = self.lease, self._newest
        return newest if lease is None or (newest is not None and newest.term > lease.term) else lease

    def leads(self, now: float) -> bool:
        """Tell whether this agent may write at `now`."""
        return now < self._until

    def observed(self, revision: int, lease: Lease | None, now: float, lacked: Lease | None = None) -> None:
        """Note a read lease, answered at `now`; `lacked` is another replica's, whose holder may write."""
        if self._since == _UNREAD or revision != self.revision or (lease is None) != (self.lease is None):
            self._since = now
        if lease is None or lease.holder != self._me:
            self._until = _NEVER
        self.revision, self.lease = revision, lease
        self._newest = self.before
        if lacked is not None and (self._newest is None or lacked.term > self._newest.term):
            self._newest = lacked

    def may_take(self, now: float) -> bool:
        """Tell whether the lease is free or expired."""
        lease = self.lease
        # What was seen last need not be the last one that there was, and a bucket without a lease may have
        # been purged of one before this agent was started.
        if lease is None or self.before is not lease:
            return now - self._since >= SECONDS * (1 + DRIFT)
        if lease.seconds <= 0 or lease.holder == self._me:
            return True
        return now - self._since >= lease.seconds * (1 + DRIFT)

    def next(self, now: float, connections: tuple[tuple[str, int], ...]) -> Lease:
        """Return the record to store over `revision`: renewal or new term."""
        term = 0 if self.before is None else self.before.term
        if not self.leads(now):
            term += 1
        return Lease(VERSION, term, self._me, self.name, SECONDS, connections)

    def stored(self, revision: int, lease: Lease, sent: float) -> None:
        """Note a stored record sent at `sent`."""
        self.revision, self.lease, self._newest, self._since = revision, lease, lease, sent
        self._until = sent + lease.seconds * (1 - DRIFT)

    def released(self, now: float) -> Lease | None:
        """Return the releasing record, None if not leading; ends the lead."""
        lease, leads = self.lease, self.leads(now)
        self._until = _NEVER
        return msgspec.structs.replace(lease, seconds=0.0) if leads and lease is not None else None
