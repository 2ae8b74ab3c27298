"""Prepares a leaf's streams at each connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from agent.config import Config, readers, users_digest
from agent.jetstream import JetStream, StreamInfo
from agent.jetstream.readers import StoredHeaders, keep_readers
from agent.leaf import stream_configs
from agent.leaf.acks import HubAckWaiters
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.link.act import ensure_rate
from agent.leaf.link.link import LeafLink
from agent.leaf.link.prepare import note_lost_positions, note_stale_positions, prepare_stream
from agent.leaf.publish.sender import Sender
from agent.leaf.publish.stream_recovery import StreamRecovery
from agent.leaf.state_file import StateFile


class ReadyStreams(Struct, frozen=True):
    """The streams of all classes."""

    infos: dict[str, StreamInfo]
    """By class."""
    stored: dict[tuple[str, str], int]
    """Batches in flight already stored: sequences by subject and id."""

    @property
    def last(self) -> dict[str, int]:
        """Return each class's last sequence."""
        return {cls: info.last for cls, info in self.infos.items()}


@dataclass(slots=True)
class StreamSetup:
    """Prepares streams for each connection."""

    link: LeafLink
    state: StateFile
    sender: Sender
    ledgers: LedgerPublisher
    waits: HubAckWaiters
    users: str = field(default="", init=False)
    """Digest of users whose consumers exist."""
    _completed: bool = field(default=False, init=False)

    async def prepare(self, config: Config, js: JetStream, recovery: StreamRecovery) -> ReadyStreams:
        """Prepare the streams. Raises `JetStreamError`, `NatsError` or `OSError`."""
        ready = ReadyStreams({}, {})
        mqtt = config.nats.mqtt.on
        for stream in stream_configs.mqtt_streams() if mqtt else ():
            await js.ensure_stream(stream)
        pulls = [input_.name for input_ in config.input if input_.pulls]
        classes = {cls.name: cls for cls in config.class_}
        await note_lost_positions(js, config.domain, classes, pulls, self.state.current)
        if not self._completed:
            await note_stale_positions(js, config.domain, classes, self.state.current)
        for name, cls in classes.items():
            info = await prepare_stream(
                js,
                config.domain,
                cls,
                self.state,
                begun=partial(self.link.epoch_begun, name),
                mqtt=mqtt,
            )
            await ensure_rate(js, config.domain, cls, self.state.current.epochs[name])
            if not self._completed:
                await self._complete_run_before(recovery, name, info)
            if (floor := self.sender.floor(name)) is not None:
                ready.stored.update(await recovery.ids_above(name, floor))
            ready.infos[name] = info
            await keep_readers(js, info.name, readers(config, name))
            self.waits.began(name, info.last)
        # Not before: `petiole user add` returns once this is shown, and its program then has to find
        # its consumers.
        self.users = users_digest(config.user)
        self._completed = True
        return ready

    async def _complete_run_before(self, recovery: StreamRecovery, cls: str, info: StreamInfo) -> None:
        known = self.ledgers.remembered.get(cls)
        since: list[StoredHeaders] = []
        if known is not None and known.created == info.created and info.last > known.seq:
            since = await recovery.batches_above(cls, known.seq)
        self.ledgers.recall(cls, info.created, since)
