"""Keeps the hash chain over a class's batches of one run, which its ledger records sign. Pure."""

from __future__ import annotations

from typing import Final

from agent.contract.receipt import chain_start, link_batch

MOST_WAITING: Final = 65_536
"""Settled batches above an unsettled number. A store that lacks space may hold that number up."""


class BatchChain:
    """Links settled batches in the order of their numbers; refused numbers are left out.

    `upto` and `head` cover each number up to the first unsettled number.
    """

    def __init__(self, domain: str, cls: str, run: str) -> None:
        self.upto, self.head = 0, chain_start(domain, cls, run)
        self._waiting: dict[int, tuple[bytes, int] | None] = {}
        self._stopped = False

    def add(self, n: int, digest: bytes, count: int) -> None:
        """Enter a stored batch with its payload's digest."""
        self._settle(n, (digest, count))

    def skip(self, n: int) -> None:
        """Enter a number without a stored batch."""
        self._settle(n, None)

    def _settle(self, n: int, batch: tuple[bytes, int] | None) -> None:
        if n <= self.upto or self._stopped:
            return
        self._waiting.setdefault(n, batch)
        while self.upto + 1 in self._waiting:
            self.upto += 1
            batch = self._waiting.pop(self.upto)
            if batch is not None:
                self.head = link_batch(self.head, self.upto, *batch)
        if len(self._waiting) > MOST_WAITING:
            # What is left stays true: later batches are in no signed record, and the audit names them.
            self._stopped = True
            self._waiting.clear()
