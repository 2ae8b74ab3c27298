"""Keeps the hub's problems, logged at start and end, and its readiness: server version, streams, loaded
fleet.
"""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
from nats.aio.client import Client

from agent.base.nats_server import ServerError, check_version
from agent.base.wait import loop_time
from agent.jetstream import JetStreamError, UnavailableError

_LIMIT: Final = 10_000
_LOG_AGAIN: Final = 60.0

log = structlog.get_logger("registrar")


class ActiveProblems:
    """Present problems by key."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._logged: dict[str, float] = {}
        """Log times."""

    def begin(self, key: str, sentence: str, *, hub: bool = False) -> None:
        """Start a problem; logged at most once a minute. Leaves' are bounded, the `hub`'s not."""
        if self._open.get(key) == sentence:
            return
        if len(self._open) >= _LIMIT and key not in self._open and not hub:
            return
        self._open[key], now = sentence, loop_time()
        if now - self._logged.get(key, -math.inf) >= _LOG_AGAIN:
            self._logged[key] = now
            log.warning(sentence, about=key)

    def end(self, key: str, sentence: str) -> None:
        """End a problem."""
        self._logged.pop(key, None)
        if self._open.pop(key, None) is not None:
            log.info(sentence, about=key)

    def of(self, key: str) -> str | None:
        """Return an open problem's sentence."""
        return self._open.get(key)

    def among(self, key: str) -> dict[str, str]:
        """Return open problems by the part for `{}` at the key's end."""
        prefix = key.removesuffix("{}")
        return {
            name.removeprefix(prefix): words for name, words in self._open.items() if name.startswith(prefix)
        }


_SERVER: Final = "server"
_REGISTRAR: Final = "registrar"


class Readiness:
    """Calls `begin` after each reconnect, as the store may be restored. `begin` raises `JetStreamError`."""

    def __init__(
        self, clients: Sequence[Client], begin: Callable[[], Awaitable[None]], problems: ActiveProblems
    ) -> None:
        self._clients, self._begin, self._problems = clients, begin, problems
        self._reconnect: int | None = None
        self._beginning = asyncio.Lock()

    async def wait(self) -> int:
        """Wait until ready; returns the reconnect's number. Raises `JetStreamError`."""
        async with self._beginning:
            reconnect = self._reconnects
            if self._reconnect == reconnect:
                return reconnect
            try:
                self._check_server()
                with _uncollected():
                    await self._begin()
            except JetStreamError as error:
                self._problems.begin(_REGISTRAR, f"the hub's streams cannot be made ready: {error}", hub=True)
                raise
            self._problems.end(_REGISTRAR, "the hub's streams are ready")
            self._reconnect = reconnect
            return reconnect

    def is_at(self, reconnect: int) -> bool:
        """Tell whether ready after this newest reconnect."""
        return self._reconnect == reconnect == self._reconnects

    def confirm(self, reconnect: int) -> None:
        """Raise `UnavailableError` after another reconnect."""
        if reconnect != self._reconnects:
            raise UnavailableError("the hub's server was restarted meanwhile")

    def trouble(self) -> str | None:
        """Return why no leaf is admitted, or None."""
        return self.server_trouble() or self._problems.of(_REGISTRAR)

    def server_trouble(self) -> str | None:
        """Return why the server is unfit for links, or None."""
        return self._problems.of(_SERVER)

    def _check_server(self) -> None:
        """Check the version; old servers lose messages silently."""
        version = self._clients[0].connected_server_version
        try:
            check_version(f"{version.major}.{version.minor}.{version.patch}", "the hub's server")
        except ServerError as error:
            self._problems.begin(_SERVER, f"no leaf is taken in: {error}", hub=True)
        else:
            self._problems.end(_SERVER, "the hub's server is new enough")

    @property
    def _reconnects(self) -> int:
        # The library calls back only the maker of the connection, so the count is polled.
        return sum(int(nc.stats["reconnects"]) for nc in self._clients)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection while loading a fleet, then freeze it."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
