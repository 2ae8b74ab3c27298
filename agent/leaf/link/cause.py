"""Finds why the link is down by dialling the hub, ever less often; with a link it checks the certificate
twice a day.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from msgspec import Struct

from agent.base.wait import Backoff, event_within, loop_time
from agent.config import Config
from agent.leaf.link.observation import UplinkStatus
from agent.server.dialling import Nowhere
from agent.server.hub_route import route_of
from agent.server.joining import (
    CLIENT_PORT,
    SILENCE,
    UNKNOWN_KEY,
    Dialled,
    LeafRefused,
    certificate_of,
    dial,
    shown,
)
from agent.server.setup import link_key_file

_FIRST_SECONDS: Final = 3.0
_SPREAD_SECONDS: Final = 5.0
"""Least spread of all leaves' dials to a returning hub."""
_AGAIN_SECONDS, _LONGEST_SECONDS = 15.0, 300.0
_CERTIFICATE_SECONDS: Final = 43_200.0
_FIRST_CERTIFICATE_SECONDS: Final = 60.0
_MOST_URLS: Final = 8

log = structlog.get_logger("link")


class Cause(Struct, frozen=True):
    """The reason of a down link."""

    sentence: str
    person: bool
    """Whether a person must change a setting, key or certificate."""


def cause_of(dialled: list[Dialled], domain: str) -> Cause | None:
    """Return the common cause of all hub addresses, None if one accepts this leaf."""
    causes = [_cause(probe, domain) for probe in dialled]
    found = [cause for cause in causes if cause is not None]
    if not found or len(found) < len(causes):
        return None
    # An address that answers tells more than the others that do not.
    found.sort(key=lambda cause: not cause.person)
    sentences = list(dict.fromkeys(cause.sentence for cause in found))
    return Cause("; ".join(sentences[:2]), found[0].person)


def _cause(probe: Dialled, domain: str) -> Cause | None:
    where = shown(probe.url)
    if isinstance(probe.greeting, Nowhere):
        remedy = "" if probe.greeting.away else f", {probe.greeting.remedy}"
        return Cause(f"{where}: {probe.greeting.why}{remedy}", not probe.greeting.away)
    if not isinstance(probe.outcome, LeafRefused):
        return None
    why, remedy = probe.outcome.why, probe.outcome.remedy or "see the log of the hub's server"
    if why == UNKNOWN_KEY:
        why = f"it refuses the key of {domain} ({UNKNOWN_KEY})"
        remedy = "let it in: petiole enrol here, petiole fleet add at the hub"
    elif why == CLIENT_PORT:
        why = "it is the port for clients of the hub's server"
        remedy = "write the port of leaf_listen into nats.hub_urls"
    return Cause(f"{where}: {why}, {remedy}", why != SILENCE)


class LinkCause:
    """Updates `cause` and `certificates`; `found` is called for a new cause.

    `uplink` returns the link's state, `spread` the hub's time for all leaves.
    """

    def __init__(
        self,
        config: Config,
        uplink: Callable[[], UplinkStatus],
        spread: Callable[[], float],
        found: Callable[[], None],
    ) -> None:
        self._domain, self._seed = config.domain, link_key_file(config)
        urls = config.nats.hub_urls[:_MOST_URLS]
        self._routes = {url: route_of(url, config.remote, urls) for url in urls}
        self._uplink, self._spread, self._found = uplink, spread, found
        self._woken = asyncio.Event()
        self._certificates_at = loop_time() + _FIRST_CERTIFICATE_SECONDS * (1 + random.random())  # noqa: S311
        self.cause: Cause | None = None
        self.certificates: Mapping[str, bytes] = {}

    def changed(self) -> None:
        """Note a link change."""
        self._woken.set()

    async def run(self) -> None:
        backoff = Backoff(_AGAIN_SECONDS, _LONGEST_SECONDS)
        while True:
            self._woken.clear()
            if self._is_down():
                lost = backoff.failures == 0
                await event_within(self._woken, self._first_delay() if lost else backoff.next())
                if not self._woken.is_set():
                    await self._ask()
                    if lost:
                        backoff.next()
                continue
            backoff.reset()
            self._show(None)
            await event_within(self._woken, max(0.0, self._certificates_at - loop_time()))
            if not self._woken.is_set():
                await self._look_at_certificates()

    def _is_down(self) -> bool:
        link = self._uplink()
        return not link.up and not link.closed and bool(self._routes)

    def _first_delay(self) -> float:
        return _FIRST_SECONDS + random.random() * max(_SPREAD_SECONDS, self._spread())  # noqa: S311

    async def _ask(self) -> None:
        dialled = await asyncio.gather(*(dial(url, self._seed, route) for url, route in self._routes.items()))
        self._keep({probe.url: probe.certificate for probe in dialled})
        if self._is_down():
            self._show(cause_of(dialled, self._domain))

    async def _look_at_certificates(self) -> None:
        self._certificates_at = loop_time() + _CERTIFICATE_SECONDS
        found = await asyncio.gather(*(certificate_of(url, route) for url, route in self._routes.items()))
        self._keep(dict(zip(self._routes, found, strict=True)))

    def _keep(self, found: Mapping[str, bytes | None]) -> None:
        seen = {shown(url): der for url, der in found.items() if der is not None}
        self.certificates = {**self.certificates, **seen}

    def _show(self, cause: Cause | None) -> None:
        if cause != self.cause:
            self.cause = cause
            self._found()
