"""Keeps the command mirror listening without the hub's consumer, so no heartbeats cross the link.

A mirror without heartbeats asks ever more rarely, up to two minutes. So a local consumer that matches no
command sends heartbeats on the hub consumer's subject, even without agent. The mirror must not have counted
deliveries, as the hub's next consumer counts from one; a heartbeat with another number resets both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

import structlog

from agent.base.wait import loop_time
from agent.contract import COMMANDS, command_deliver
from agent.jetstream import JetStream, JetStreamError

LISTENER: Final = "petiole-listener"
RESETTER: Final = "petiole-reset"
"""Redelivers one message, so its heartbeats differ from the mirror's count."""
_HEARTBEAT: Final = 3.0
_QUICK_HEARTBEAT: Final = 0.1
_ACK_WAIT: Final = 0.15
_HEARD: Final = 0.5
"""Seconds with several heartbeats and a delivery."""
SETTLE_SECONDS: Final = 3.0
"""A mirror asks at most every two seconds."""
_SILENT: Final = 8.0
_LEFT_ALONE: Final = 30.0
"""Seconds before an unused consumer is deleted."""
_AGAIN: Final = 3600.0
"""Seconds before another try."""

log = structlog.get_logger("link")


class _Stage(Enum):
    AWAKE = auto()
    RESET = auto()
    LISTENS = auto()


class MirrorRest:
    """Rests the mirror after seconds without commands (None: never). `changed` reports starts and ends.

    `stream` is any stream of the leaf.
    """

    def __init__(
        self,
        domain: str,
        stream: str,
        after: float | None,
        changed: Callable[[], None],
        now: Callable[[], float] = loop_time,
    ) -> None:
        self._domain, self._stream, self._after = domain, stream, after
        self._changed, self._now = changed, now
        self._stage, self._left_over = _Stage.AWAKE, True
        """Whether a consumer may be left over from an ended agent or failed request."""
        self._place: tuple[str, int] | None = None
        self._since = 0.0

    @property
    def listens(self) -> bool:
        """Whether the mirror listens locally."""
        return self._stage is _Stage.LISTENS

    def listens_under(self, epoch: str) -> bool:
        """Tell whether it listens under this epoch."""
        return self.listens and self._place is not None and self._place[0] == epoch

    async def look(self, js: JetStream, epoch: str, last: int, *, may_rest: bool | None) -> None:
        """Act on the mirror's state up to `last`. `may_rest` None (silent hub) keeps a rest but
        starts none.
        """
        try:
            if self._left_over or may_rest is False or (epoch, last) != self._place:
                self._place, self._since = (epoch, last), self._now()
                await self._end(js)
            elif self._after is not None and (may_rest or self.listens):
                await self._next(js, epoch, self._after)
            else:
                self._since = self._now()
                await self._end(js)
        except JetStreamError as error:
            self._since = self._now()
            log.info("commands do not rest", reason=str(error))

    async def _next(self, js: JetStream, epoch: str, after: float) -> None:
        waited = self._now() - self._since
        if self._stage is _Stage.AWAKE and waited >= after:
            self._since = self._now()
            if await self._reset(js, epoch):
                self._stage = _Stage.RESET
        elif self._stage is _Stage.RESET and waited >= SETTLE_SECONDS and await _hears(js):
            await js.create_consumer(COMMANDS, _listener(self._domain, epoch))
            self._stage = _Stage.LISTENS
            self._changed()
        elif self._stage is _Stage.LISTENS and not await _hears(js):
            log.warning("mirror of the commands asleep", effect="it is kept awake for an hour")
            self._since = self._now() + _AGAIN
            await self._end(js)

    async def _end(self, js: JetStream) -> None:
        if self._left_over or self._stage is not _Stage.AWAKE:
            if self.listens:
                self._changed()
            self._stage, self._left_over = _Stage.AWAKE, True
            await js.delete_consumer(COMMANDS, LISTENER)
            await js.delete_consumer(self._stream, RESETTER)
            self._left_over = False

    async def _reset(self, js: JetStream, epoch: str) -> bool:
        """Make the mirror reset the hub's consumer; False without message."""
        if not (await js.stream_info(self._stream)).messages:
            return False
        self._left_over = True
        await js.create_consumer(self._stream, _resetter(self._domain, epoch))
        await asyncio.sleep(_HEARD)
        await js.delete_consumer(self._stream, RESETTER)
        self._left_over = False
        return True


async def _hears(js: JetStream) -> bool:
    """Tell whether a heartbeat came lately."""
    mirror = (await js.api(f"STREAM.INFO.{COMMANDS}")).get("mirror") or {}
    return not mirror.get("error") and 0 <= mirror.get("active", -1) < _SILENT * 1e9


def _heartbeats(name: str, domain: str, epoch: str, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "deliver_subject": command_deliver(domain, epoch),
        "idle_heartbeat": _nanoseconds(seconds),
        "inactive_threshold": _nanoseconds(_LEFT_ALONE),
        "mem_storage": True,
        "num_replicas": 1,
    }


def _listener(domain: str, epoch: str) -> dict[str, Any]:
    nothing = {"ack_policy": "none", "deliver_policy": "new", "filter_subject": f"cmd.{domain}.-"}
    return _heartbeats(LISTENER, domain, epoch, _HEARTBEAT) | nothing


def _resetter(domain: str, epoch: str) -> dict[str, Any]:
    repeats = {"ack_policy": "explicit", "ack_wait": _nanoseconds(_ACK_WAIT)}
    message = {"deliver_policy": "last", "headers_only": True}
    return _heartbeats(RESETTER, domain, epoch, _QUICK_HEARTBEAT) | repeats | message


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
