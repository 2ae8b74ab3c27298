"""The keeper of the leaf's mirror of its commands: looks at it, hears from the announcements what the hub
holds, and makes it anew where it would stay behind for good. It reads no command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from agent import streams
from agent.contract import COMMANDS, CommandsHeld, CommandsWanted, command_deliver, new_epoch
from agent.jetstream import STREAM_NOT_FOUND, ApiError, JetStream, JetStreamError
from agent.link.declared.command_mirror import Decision, Make, Mirror, NewEpoch, Seen, decide
from agent.metrics import Metrics
from agent.state import StateFile

LOOK_SECONDS: Final = 5.0
LAGGING_SECONDS: Final = 0.5
EPOCH_EVERY: Final = 5.0
"""Seconds from one new epoch to the next, so that a fault which comes back at once does not cost more."""

log = structlog.get_logger("link")


@dataclass(slots=True)
class _Answer:
    """What was announced and what the hub answered to that; `judged` once a look has set it beside the
    mirror."""

    wanted: CommandsWanted
    held: CommandsHeld
    judged: bool = False


class CommandMirror:
    """Keeps the mirror over the current connection; `api` is the prefix of the hub's JetStream, `attach` and
    `detach` say which connection that is, `announce` asks the uplink to announce at once."""

    def __init__(
        self, domain: str, api: str, state: StateFile, metrics: Metrics, announce: Callable[[], None]
    ) -> None:
        self._api = api
        self._domain, self._state, self._metrics, self._announce = domain, state, metrics, announce
        self._js: JetStream | None = None
        self._due = asyncio.Event()
        self._fresh = False
        self._epoch_at: float | None = None
        self._last = 0
        self._answer: _Answer | None = None
        self._missed = 0
        self._decision = Decision("the mirror of the commands was not looked at yet", up=False)

    def attach(self, js: JetStream) -> None:
        """Look at the mirror over this connection, at once."""
        self._js = js
        self._due.set()

    def detach(self) -> None:
        """There is no connection to look over."""
        self._js = None
        self._answer = None
        self._say(Decision("the local NATS server does not answer", up=False))

    async def wanted(self) -> CommandsWanted | None:
        """What to announce: the mirror as it is now, not as it was at the last look. None before the first
        epoch was chosen."""
        epoch = self._state.current.command_epoch
        if epoch is None:
            return None
        if self._js is not None:
            # What cannot be read now is announced as it was seen last: readings must not wait for commands.
            with contextlib.suppress(JetStreamError):
                await self._read(self._js, epoch)
        return CommandsWanted(epoch, self._last)

    def answered(self, wanted: CommandsWanted | None, held: CommandsHeld | None) -> None:
        """What the hub answered to `wanted`, None where it did not answer. A newer question that is still on
        its way says nothing about this answer."""
        epoch = self._state.current.command_epoch
        if held is not None and (wanted is None or wanted.epoch != epoch or held.epoch != epoch):
            return
        self._answer = None if wanted is None or held is None else _Answer(wanted, held)
        self._due.set()

    def status(self) -> dict[str, Any]:
        """The mirror as a row of `/status`."""
        one = self._decision
        return {
            "link": COMMANDS,
            "kind": "mirror",
            "of": COMMANDS,
            "state": one.sentence,
            "up": one.up,
            "lag": one.lag,
            "last": self._last,
        }

    async def run(self) -> None:
        """Look every `LOOK_SECONDS`, more often while commands are missing, and whenever something is known
        anew; until cancelled."""
        while True:
            self._due.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAGGING_SECONDS if self._decision.lag else LOOK_SECONDS):
                    await self._due.wait()

    async def look(self) -> None:
        """Look at the mirror once, over the current connection, and do what is due."""
        js = self._js
        if js is None:
            return
        try:
            decision = decide(await self._look(js))
            match decision.action:
                case NewEpoch(why):
                    await self._new_epoch(why.value)
                case Make() as make:
                    await self._make(js, make)
            self._say(decision)
        except JetStreamError as error:
            self._say(Decision(f"the mirror of the commands cannot be kept: {error}", up=False))

    async def _look(self, js: JetStream) -> Seen:
        epoch = self._state.current.command_epoch
        answer = self._answer
        mirror = await self._read(js, epoch)
        if answer is not None and not answer.judged:
            answer.judged = True
            lacks = answer.held.last > self._last and not answer.held.behind
            self._missed = self._missed + 1 if lacks and not self._fresh else 0
        return Seen(
            deliver=self._deliver(epoch),
            fresh=self._fresh,
            mirror=mirror,
            held=None if answer is None else answer.held,
            asked_last=0 if answer is None else answer.wanted.last,
            missed=self._missed,
        )

    async def _read(self, js: JetStream, epoch: str | None) -> Mirror | None:
        mirror = await _mirror(js, self._api)
        ours = mirror is not None and mirror.deliver == self._deliver(epoch)
        self._last = mirror.last if mirror is not None and ours else 0
        return mirror

    def _deliver(self, epoch: str | None) -> str | None:
        return None if epoch is None else command_deliver(self._domain, epoch)

    async def _new_epoch(self, why: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._epoch_at is not None and now - self._epoch_at < EPOCH_EVERY:
            return
        self._epoch_at = now
        self._fresh, self._answer, self._missed, self._last = True, None, 0, 0
        self._state.current.command_epoch = epoch = new_epoch()
        # A disk that takes no state now costs another epoch after the next start, and nothing else.
        with contextlib.suppress(OSError):
            await self._state.save()
        log.warning("new epoch of the commands", epoch=epoch, why=why)
        self._announce()

    async def _make(self, js: JetStream, make: Make) -> None:
        epoch = self._state.current.command_epoch
        assert epoch is not None, "a mirror is made under an epoch"
        if make.replacing:
            await js.api(f"STREAM.DELETE.{COMMANDS}")
        await js.api(
            f"STREAM.CREATE.{COMMANDS}", streams.command_mirror(self._domain, epoch, make.origin, self._api)
        )
        self._fresh = False
        self._due.set()
        self._announce()

    def _say(self, decision: Decision) -> None:
        if decision.sentence != self._decision.sentence:
            (log.info if decision.up else log.warning)("link", link=COMMANDS, state=decision.sentence)
        self._decision = decision
        self._metrics.show_link(COMMANDS, up=decision.up, lag=decision.lag)


async def _mirror(js: JetStream, api: str) -> Mirror | None:
    try:
        info = await js.stream_info(COMMANDS)
    except ApiError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return None
    mirror = info.config.get("mirror") or {}
    return Mirror(
        info.last,
        (mirror.get("consumer") or {}).get("deliver_subject", ""),
        (info.config.get("metadata") or {}).get(streams.ORIGIN_METADATA, ""),
        elsewhere=(mirror.get("external") or {}).get("api", api) != api,
    )
