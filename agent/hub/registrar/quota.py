"""Limits requests and hourly bytes of domains. Pure; monotonic seconds."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from typing import Final

from agent.hub.registrar.fleet_events import LinkId

HOUR: Final = 3600.0
_PARTS: Final = 60
_ENDED: Final = 10_000
_AGAIN: Final = 0.8
"""Part of the limit below which a domain returns, against flapping."""


class Allowance:
    """A token bucket: `at_once`, refilled each `every` seconds."""

    __slots__ = ("_every", "_full_at", "_most")

    def __init__(self, at_once: int, every: float) -> None:
        self._every, self._most = every, (at_once - 1) * every
        self._full_at = float("-inf")
        """When it is full again."""

    def take(self, now: float) -> bool:
        """Count one if allowed; returns whether."""
        if self._full_at - now > self._most:
            return False
        self._full_at = max(now, self._full_at) + self._every
        return True


class Quota:
    """Counts link bytes per hour, to a minute."""

    def __init__(self, limit: int, hour: float = HOUR) -> None:
        self.limit = limit
        self.over: set[str] = set()
        self._part = hour / _PARTS
        self._hour = hour
        self._links: dict[LinkId, int] = {}
        self._ended: dict[LinkId, None] = {}
        self.totals: dict[str, int] = {}
        """Bytes by domain since start."""
        self._sent: defaultdict[str, deque[tuple[float, int]]] = defaultdict(deque)

    def count(self, links: Mapping[LinkId, int], domains: Mapping[LinkId, str], now: float) -> None:
        """Count all links' totals."""
        counted = {
            link: total for link, total in links.items() if link in domains and link not in self._ended
        }
        for link, total in counted.items():
            self._add(domains[link], max(0, total - self._links.get(link, 0)), now)
        self._links = counted

    def ended(self, link: LinkId, domain: str, total: int, now: float) -> None:
        """Count an ended link's total, as it may be short-lived."""
        if link in self._ended:
            return
        self._add(domain, max(0, total - self._links.pop(link, 0)), now)
        # A look that began before may still show it. Links are numbered and come once.
        self._ended[link] = None
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    def changed(self, now: float, domains: Collection[str] | None = None) -> tuple[set[str], set[str]]:
        """Return domains newly over and under the limit, among `domains`."""
        looked = list(self._sent) if domains is None else domains
        sent = {domain: self.sent(domain, now) for domain in looked}
        begun = {domain for domain, size in sent.items() if size > self.limit} - self.over
        over = self.over if domains is None else self.over.intersection(domains)
        ended = {domain for domain in over if sent.get(domain, 0) <= _AGAIN * self.limit}
        self.over = self.over - ended | begun
        return begun, ended

    def sent(self, domain: str, now: float) -> int:
        """Return a domain's bytes in the last hour."""
        parts = self._sent[domain]
        while parts and now - parts[0][0] >= self._hour:
            parts.popleft()
        if not parts:
            del self._sent[domain]
        return sum(size for _, size in parts)

    def _add(self, domain: str, size: int, now: float) -> None:
        self.totals[domain] = self.totals.get(domain, 0) + size
        parts = self._sent[domain]
        if parts and now - parts[-1][0] < self._part:
            parts[-1] = (parts[-1][0], parts[-1][1] + size)
        elif size:
            parts.append((now, size))


def sentence(domain: str, sent: int, limit: int) -> str:
    """Describe a domain over its limit."""
    return (
        f"{domain} has sent {sent} bytes within an hour, and [registrar] bytes_per_hour allows {limit}: its "
        f"sources are taken out until the hour has room again; its readings wait on the leaf"
    )
