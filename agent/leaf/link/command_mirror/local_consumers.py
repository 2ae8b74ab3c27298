"""Preserves local programs' consumers when the command mirror is recreated.

Consumers are saved at each look, and before deletion with the held commands. The new mirror gets them paused
before delivery, and each resumes at its position. So no program gets an acknowledged command again, whenever
the agent dies.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog
from msgspec.structs import replace
from nats.aio.client import Client

from agent.base.files import write_private
from agent.base.logs import LogEdge
from agent.base.wait import loop_time
from agent.contract import APP, COMMANDS, CommandKey, command_subject
from agent.jetstream import ApiError, ConsumerInfo, JetStream, JetStreamError, nanoseconds
from agent.leaf.link.command_mirror import mirror_requests
from agent.leaf.link.command_mirror.positions import (
    ConsumerPosition,
    ConsumerPositions,
    Placement,
    Stage,
    acknowledged_above,
    is_held,
    is_leaving,
    kept_config,
    parse_positions,
    paused_until,
    placement,
    superfluous,
)

_REFUSED_SECONDS: Final = 60.0
"""Interval without permission to list consumers."""
_ATTEMPTS: Final = 3
_TAKEN_OUT: Final = 10_000
"""Remembered deleted commands."""
_NAMED: Final = 20
"""Lost commands named in a log line."""
_EFFECT: Final = "a local program may be handed commands again that it has acknowledged"

log = structlog.get_logger("link")


class ProgramPositions:
    """Positions in the file `path`. All methods but `load` raise `JetStreamError`."""

    def __init__(self, path: Path, domain: str) -> None:
        self._path, self._domain = path, domain
        self._positions = ConsumerPositions()
        self._saved = b""
        self._failures = 0
        self._list_at = 0.0
        self._writing = LogEdge(log, "positions of local programs saved again")
        self._listing = LogEdge(log, "consumers of commands listed again")

    def load(self) -> None:
        try:
            self._saved = self._path.read_bytes()
            self._positions = parse_positions(self._saved)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error(
                "positions of local programs lost", path=str(self._path), error=str(error), effect=_EFFECT
            )

    @property
    def stage(self) -> Stage:
        """The progress of a recreation."""
        return self._positions.stage

    @property
    def top(self) -> int | None:
        """Sequence to reach before programs resume; None if none waits."""
        return self._positions.top if self.stage is Stage.HELD else None

    @property
    def mirrored(self) -> bool:
        """Whether a mirror existed before."""
        return bool(self._positions.mirror)

    @property
    def last_out(self) -> int:
        """Last deleted sequence."""
        return self._positions.last_out

    async def record(self, js: JetStream, created: str, agreed: CommandKey | None) -> None:
        """Record consumers' positions in the mirror of `created`; `agreed` is the newest common command."""
        now = loop_time()
        if now < self._list_at:
            return
        try:
            consumers = await mirror_requests.durable(js)
        except JetStreamError as error:
            self._list_at = now + _REFUSED_SECONDS
            self._listing.begin(f"the consumers of the commands cannot be listed: {error}")
            return
        self._listing.end()
        held = {info.name for info in consumers if is_held(info.config)}
        if self.stage is Stage.DUE and self._positions.mirror == created:
            # The agent was killed before it deleted this mirror.
            self._positions.stage = Stage.HELD if held else Stage.NONE
        if self.stage is Stage.DUE:
            return
        for info in consumers:
            if is_leaving(info.config) or (info.name in held and self.stage is Stage.NONE):
                await self._lift_pause(js, info.name)
        positions = {
            info.name: await self._position(js, info, agreed)
            for info in consumers
            if info.name not in held or self.stage is Stage.NONE
        }
        if self.stage is Stage.HELD:
            self._positions.consumers = self._positions.consumers | positions
        else:
            self._positions.consumers = positions
            if self._positions.mirror != created:
                self._positions.mirror, self._positions.last_out = created, 0
        await self._save()

    async def preserve(self, nc: Client, js: JetStream, created: str | None) -> None:
        """Save consumers before the mirror's deletion (None: gone), after some time for readers."""
        if created is not None:
            try:
                self._positions.consumers = await self._last_positions(nc, js)
            except JetStreamError as error:
                self._failures += 1
                if self._failures < _ATTEMPTS:
                    raise
                log.error("positions of local programs may be old", error=str(error), effect=_EFFECT)
        self._failures = 0
        self._positions.stage = Stage.DUE if self._positions.consumers else Stage.NONE
        if self.stage is Stage.NONE:
            self._positions.last_out = 0
        self._positions.mirror = created or self._positions.mirror
        await self._save()

    async def _last_positions(self, nc: Client, js: JetStream) -> dict[str, ConsumerPosition]:
        positions = dict(self._positions.consumers) if self.stage is not Stage.NONE else {}
        for info in await mirror_requests.settled(js):
            if info.name not in positions or not is_held(info.config):
                commands = await mirror_requests.commands(nc, js, info.config)
                position = ConsumerPosition(kept_config(info.config), info.ack_floor, commands)
                above = acknowledged_above(position, info.delivered, info.ack_pending)
                positions[info.name] = replace(position, above=above)
        return positions

    async def hold(self, js: JetStream) -> None:
        """Create all consumers paused in the empty mirror."""
        for name, position in self._positions.consumers.items():
            await self._hold(js, name, position)
        await mirror_requests.all_held(js, self._positions.consumers)
        self._positions.stage, self._positions.last_out = Stage.HELD, 0
        await self._save()

    async def resume(self, nc: Client, js: JetStream, created: str) -> None:
        """Resume each consumer after its acknowledged commands."""
        waiting: dict[str, Placement] = {}
        all_commands = dict(await mirror_requests.commands(nc, js, {}))
        for name, position in self._positions.consumers.items():
            info = await js.find_consumer(COMMANDS, name) or await self._hold(js, name, position)
            if info is not None and is_held(info.config):
                matching = dict(await mirror_requests.commands(nc, js, position.config))
                waiting[name] = placement(position, matching, all_commands, self._positions.taken_out)
        sequences = superfluous(waiting.values())
        if len(waiting) < len(self._positions.consumers):
            # One has resumed already and may not have read what the others have: this was done before.
            sequences = set()
        if sequences:
            own = {"filter_subject": command_subject(self._domain, APP, ">")}
            sequences -= set(dict(await mirror_requests.commands(nc, js, own)))
        await self._take_out(js, [(seq, all_commands[seq]) for seq in sorted(sequences)])
        for name, point in waiting.items():
            await self._release(js, name, self._positions.consumers[name], point)
        self._positions.stage, self._positions.mirror = Stage.NONE, created
        await self._save()

    async def _take_out(self, js: JetStream, commands: list[CommandKey]) -> None:
        deleted = {*self._positions.taken_out, *commands}
        self._positions.taken_out = sorted(deleted, key=lambda command: command[1])[-_TAKEN_OUT:]
        self._positions.last_out = max(self._positions.last_out, *(seq for seq, _ in commands), 0)
        await self._save()
        for seq, _ in commands:
            await js.api(f"STREAM.MSG.DELETE.{COMMANDS}", {"seq": seq, "no_erase": True})

    async def _release(self, js: JetStream, name: str, position: ConsumerPosition, point: Placement) -> None:
        await mirror_requests.move(js, name, position.config, point.start)
        # Only this resumes it: an agent that is killed before moves it to the same position again.
        await mirror_requests.pause(js, name, paused_until(position.config))
        log.info("local program resumed", consumer=name, sequence=point.start, acknowledged=position.floor)
        if point.unread:
            log.warning(
                "commands lost with the hub's stream",
                consumer=name,
                commands=len(point.unread),
                sequences=point.unread[:_NAMED],
            )

    async def _hold(self, js: JetStream, name: str, position: ConsumerPosition) -> ConsumerInfo | None:
        try:
            return await mirror_requests.hold(js, name, position.config)
        except ApiError as error:
            log.error(
                "consumer of the commands not recreated", consumer=name, error=str(error), effect=_EFFECT
            )
            return None

    async def _lift_pause(self, js: JetStream, name: str) -> None:
        """Lift the pause of a killed agent."""
        position = self._positions.consumers.get(name)
        await mirror_requests.pause(js, name, None if position is None else paused_until(position.config))
        log.warning("pause of local program lifted", consumer=name)

    async def _position(
        self, js: JetStream, info: ConsumerInfo, agreed: CommandKey | None
    ) -> ConsumerPosition:
        recorded = self._positions.consumers.get(info.name)
        config, floor = kept_config(info.config), info.ack_floor
        if recorded is not None and (is_held(config) or is_leaving(config)):
            config = recorded.config
        if agreed is None or not floor:
            return ConsumerPosition(config, floor)
        if agreed[0] <= floor:
            return ConsumerPosition(config, floor, [agreed])
        last = await js.get_message(COMMANDS, seq=floor)
        return ConsumerPosition(config, floor, [] if last is None else [(last.seq, nanoseconds(last.time))])

    async def _save(self) -> None:
        data = self._positions.encode()
        if data == self._saved:
            return
        try:
            await asyncio.to_thread(write_private, self._path, data)
        except OSError as error:
            self._writing.begin(f"positions of local programs cannot be saved: {error}")
        else:
            self._saved = data
            self._writing.end()
