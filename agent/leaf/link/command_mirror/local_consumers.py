"""The consumers of local programs on the leaf's mirror of its commands, kept over its recreation.

A consumer can't outlive its stream. While a mirror stands, its durable consumers are noted in a file at
each look; before one is deleted, also which commands it held. The new mirror gets them at once, paused, and
the hub delivers into it only afterwards; each is let go once it has its place. So a program is handed no
command that it has acknowledged, whenever the agent is killed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog
from nats.aio.client import Client

from agent.base.files import write_private
from agent.base.log_edges import LogEdge
from agent.base.wait import loop_time
from agent.contract import APP, COMMANDS, CommandKey, command_subject
from agent.jetstream import ApiError, ConsumerInfo, JetStream, JetStreamError, nanoseconds
from agent.leaf.link.command_mirror import consumer_requests
from agent.leaf.link.command_mirror.positions import (
    ConsumerPosition,
    ConsumerPositions,
    Placement,
    Stage,
    is_held,
    is_leaving,
    kept_config,
    parse_positions,
    paused_until,
    placement,
    superfluous,
)

_REFUSED_SECONDS: Final = 60.0
"""From one look to the next where the server does not let the agent list consumers."""
_ATTEMPTS: Final = 3
_TAKEN_OUT: Final = 10_000
"""How many commands are remembered that were taken out of a mirror."""
_NAMED: Final = 20
"""How many lost commands a log line names."""
_EFFECT: Final = "a local program may be handed commands again that it has acknowledged"

log = structlog.get_logger("link")


class ProgramPositions:
    """The places of local programs, in the file `path`. Everything but `load` raises `JetStreamError`."""

    def __init__(self, path: Path, domain: str) -> None:
        self._path, self._domain = path, domain
        self._places = ConsumerPositions()
        self._saved = b""
        self._failures = 0
        self._list_at = 0.0
        self._writing = LogEdge(log, "the places of local programs in the commands are written again")
        self._listing = LogEdge(log, "the consumers of the commands can be listed again")

    def load(self) -> None:
        """Read the file."""
        try:
            self._saved = self._path.read_bytes()
            self._places = parse_positions(self._saved)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error(
                "places of local programs lost",
                path=str(self._path),
                error=str(error),
                effect=_EFFECT,
            )

    @property
    def stage(self) -> Stage:
        """How far a recreation of the mirror has come."""
        return self._places.stage

    @property
    def top(self) -> int | None:
        """The sequence that the new mirror must have reached, if the hub holds it; None where no program
        waits for its place."""
        return self._places.top if self.stage is Stage.HELD else None

    @property
    def mirrored(self) -> bool:
        """Whether there was a mirror here already."""
        return bool(self._places.mirror)

    @property
    def last_out(self) -> int:
        """The last sequence that was taken out of the mirror, as no program is to be handed it again."""
        return self._places.last_out

    async def note(self, js: JetStream, created: str, agreed: CommandKey | None) -> None:
        """Note where the consumers of the mirror made at `created` are now; `agreed` is the newest command in
        it that the hub was found to hold."""
        now = loop_time()
        if now < self._list_at:
            return
        try:
            consumers = await consumer_requests.durable(js)
        except JetStreamError as error:
            self._list_at = now + _REFUSED_SECONDS
            self._listing.begin(f"the consumers of the commands cannot be listed: {error}")
            return
        self._listing.end()
        held = {info.name for info in consumers if is_held(info.config)}
        if self.stage is Stage.DUE and self._places.mirror == created:
            # The agent was killed before it deleted this mirror.
            self._places.stage = Stage.HELD if held else Stage.NONE
        if self.stage is Stage.DUE:
            return
        for info in consumers:
            if is_leaving(info.config) or (info.name in held and self.stage is Stage.NONE):
                await self._let_go(js, info.name)
        placed = {
            info.name: await self._noted(js, info, agreed)
            for info in consumers
            if info.name not in held or self.stage is Stage.NONE
        }
        if self.stage is Stage.HELD:
            self._places.consumers = self._places.consumers | placed
        else:
            self._places.consumers = placed
            if self._places.mirror != created:
                self._places.mirror, self._places.last_out = created, 0
        await self._save()

    async def keep(self, nc: Client, js: JetStream, created: str | None) -> None:
        """Keep all that is known of the consumers before the mirror made at `created` is deleted; None where
        it is gone already. Programs that are reading it are given some time to go on to its end."""
        if created is not None:
            try:
                self._places.consumers = await self._last_places(nc, js)
            except JetStreamError as error:
                self._failures += 1
                if self._failures < _ATTEMPTS:
                    raise
                log.error(
                    "places of local programs are those of the last look", error=str(error), effect=_EFFECT
                )
        self._failures = 0
        self._places.stage = Stage.DUE if self._places.consumers else Stage.NONE
        if self.stage is Stage.NONE:
            self._places.last_out = 0
        self._places.mirror = created or self._places.mirror
        await self._save()

    async def _last_places(self, nc: Client, js: JetStream) -> dict[str, ConsumerPosition]:
        places = dict(self._places.consumers) if self.stage is not Stage.NONE else {}
        for info in await consumer_requests.settled(js):
            if info.name not in places or not is_held(info.config):
                commands = await consumer_requests.commands(nc, js, info.config)
                places[info.name] = ConsumerPosition(kept_config(info.config), info.ack_floor, commands)
        return places

    async def hold(self, js: JetStream) -> None:
        """Make the consumers in the new mirror, which is empty, and let nothing be delivered to them."""
        for name, place in self._places.consumers.items():
            await self._hold(js, name, place)
        self._places.stage, self._places.last_out = Stage.HELD, 0
        await self._save()

    async def place(self, nc: Client, js: JetStream, created: str) -> None:
        """Let each consumer of the new mirror, made at `created`, go on after what it has acknowledged."""
        waiting: dict[str, Placement] = {}
        every = dict(await consumer_requests.commands(nc, js, {}))
        for name, place in self._places.consumers.items():
            info = await js.find_consumer(COMMANDS, name) or await self._hold(js, name, place)
            if info is not None and is_held(info.config):
                there = dict(await consumer_requests.commands(nc, js, place.config))
                waiting[name] = placement(place, there, every, self._places.taken_out)
        sequences = superfluous(waiting.values())
        if len(waiting) < len(self._places.consumers):
            # One has its place already and may not have read what the others have: this was done before.
            sequences = set()
        if sequences:
            own = {"filter_subject": command_subject(self._domain, APP, ">")}
            sequences -= set(dict(await consumer_requests.commands(nc, js, own)))
        await self._take_out(js, [(seq, every[seq]) for seq in sorted(sequences)])
        for name, one in waiting.items():
            await self._release(js, name, self._places.consumers[name], one)
        self._places.stage, self._places.mirror = Stage.NONE, created
        await self._save()

    async def _take_out(self, js: JetStream, commands: list[CommandKey]) -> None:
        known = {*self._places.taken_out, *commands}
        self._places.taken_out = sorted(known, key=lambda one: one[1])[-_TAKEN_OUT:]
        self._places.last_out = max(self._places.last_out, *(seq for seq, _ in commands), 0)
        await self._save()
        for seq, _ in commands:
            await js.api(f"STREAM.MSG.DELETE.{COMMANDS}", {"seq": seq, "no_erase": True})

    async def _release(self, js: JetStream, name: str, place: ConsumerPosition, one: Placement) -> None:
        await consumer_requests.move(js, name, place.config, one.start)
        # Only this lets it go on: an agent that is killed before gives it the same place again.
        await consumer_requests.pause(js, name, paused_until(place.config))
        log.info("local program goes on", consumer=name, sequence=one.start, acknowledged=place.floor)
        if one.unread:
            log.warning(
                "commands lost with the hub's stream, not read here in time",
                consumer=name,
                commands=len(one.unread),
                sequences=one.unread[:_NAMED],
            )

    async def _hold(self, js: JetStream, name: str, place: ConsumerPosition) -> ConsumerInfo | None:
        try:
            return await consumer_requests.hold(js, name, place.config)
        except ApiError as error:
            log.error(
                "consumer of the commands not recreated", consumer=name, error=str(error), effect=_EFFECT
            )
            return None

    async def _let_go(self, js: JetStream, name: str) -> None:
        """Lift the pause of an agent that was killed before it deleted this mirror."""
        known = self._places.consumers.get(name)
        await consumer_requests.pause(js, name, None if known is None else paused_until(known.config))
        log.warning("local program let go", consumer=name)

    async def _noted(self, js: JetStream, info: ConsumerInfo, agreed: CommandKey | None) -> ConsumerPosition:
        known = self._places.consumers.get(info.name)
        config, floor = kept_config(info.config), info.ack_floor
        if known is not None and (is_held(config) or is_leaving(config)):
            config = known.config
        if agreed is None or not floor:
            return ConsumerPosition(config, floor)
        if agreed[0] <= floor:
            return ConsumerPosition(config, floor, [agreed])
        last = await js.get_message(COMMANDS, seq=floor)
        return ConsumerPosition(config, floor, [] if last is None else [(last.seq, nanoseconds(last.time))])

    async def _save(self) -> None:
        data = self._places.encode()
        if data == self._saved:
            return
        try:
            await asyncio.to_thread(write_private, self._path, data)
        except OSError as error:
            self._writing.begin(f"the places of local programs in the commands cannot be written: {error}")
        else:
            self._saved = data
            self._writing.end()
