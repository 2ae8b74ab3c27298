"""The agent of a leaf: its parts put together, and the order in which they begin and end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from nats.aio.client import Client

from agent import contract
from agent.base import logs
from agent.base.metrics import Metrics
from agent.base.supervisor import keep_serving
from agent.config import Config, readers, users_digest
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.jetstream.connection import ServerConnection, server_version
from agent.jetstream.read_headers import StoredHeaders
from agent.jetstream.readers import keep_readers
from agent.leaf import stream_configs
from agent.leaf.clock.monitor import ClockMonitor
from agent.leaf.commands.handlers import AgentControls, make_handlers
from agent.leaf.commands.overrides import Overrides, Setter, make_setters, this_moment
from agent.leaf.commands.runner import CommandRunner, system_clock
from agent.leaf.events import BatchStored
from agent.leaf.hub_acks import HubAckWaiters
from agent.leaf.intake import Input
from agent.leaf.ledger.evictions.service import Discards
from agent.leaf.ledger.ledger import ClassLedger
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.link.act import Trimmer, ensure_rate
from agent.leaf.link.link import LeafLink, LinkHooks
from agent.leaf.link.prepare import note_lost_positions, prepare_stream
from agent.leaf.link.time_to_loss import TimeToLossReport
from agent.leaf.publish.accumulator import BatchLimits
from agent.leaf.publish.ack_levels import Levels
from agent.leaf.publish.core_intake import CoreIntake
from agent.leaf.publish.dead_letters import DeadLetterWriter
from agent.leaf.publish.idempotency_recovery import KnownRequests
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.pull_chunks import Progress, PullChunkStore
from agent.leaf.publish.sender import Sender
from agent.leaf.publish.stream_recovery import StreamRecovery
from agent.leaf.state import StateFile
from agent.mirrors import mirror_controller
from agent.process.input_runner import InputSet, drain, keep_running, levels_of
from agent.process.reload import Applied, Reloader
from agent.process.reload.reloader import by_command
from agent.server.health import ServerHealth
from agent.server.setup import identities

_AGAIN_SECONDS = 1.0

log = structlog.get_logger("leaf")


class LeafAgent:
    """One run of a leaf's agent; `intake` is that of its inputs."""

    def __init__(
        self,
        config: Config,
        state: StateFile,
        metrics: Metrics,
        inputs: Sequence[Input],
        health: ServerHealth,
        reload: Reloader | None = None,
    ) -> None:
        self._config, self._state, self._metrics, self._health = config, state, metrics, health
        self._classes = {cls.name: cls for cls in config.class_}
        run = contract.new_run()
        ledgers = {name: ClassLedger(config.domain, name, run) for name in self._classes}
        publish = config.publish
        self._discards = Discards(
            config.domain,
            run,
            self._classes,
            config.state_dir,
            state.current.epochs,
            ledgers,
            metrics,
        )
        self._books = LedgerPublisher(config.domain, run, ledgers, state, self._discards)
        self._clock = ClockMonitor(config.domain, self._classes, state, metrics, self._discards.stored)
        levels = levels_of(config)
        self._levels = Levels(levels, health)
        self._waits = HubAckWaiters(lambda cls: self.link.status.classes[cls].sentence)
        self._publisher = Publisher(
            BatchLimits(publish.batch_bytes, publish.batch_readings, publish.linger),
            publish.in_flight,
            metrics,
            lambda cls: (
                health.refusal(contract.leaf_stream(config.domain, cls)) or self.link.disk_quota.refusal(cls)
            ),
            ledgers=ledgers,
            levels=levels,
            clock=self._clock.look,
            hub=self._waits,
        )
        burial = DeadLetterWriter(self._publisher.submit, ledgers, metrics)
        pieces = PullChunkStore(
            self._publisher.submit,
            burial,
            self._progress,
            self._books.remember_position,
            lambda input_name: input_name in state.current.unplaced,
        )
        self._reception = CoreIntake(config.domain, self._publisher, pieces, burial)
        self._inputs = InputSet(config, inputs, self._reception, levels, metrics)
        self.intake = self._inputs.intake
        self._known_requests = KnownRequests(
            config.state_dir,
            self._publisher,
            self._classes,
            [cls.name for cls in config.class_ if cls.discard == "old"],
            self._attached_recall,
        )
        mine = identities(config)
        self._connection = ServerConnection(
            f"nats://{config.nats.listen}",
            mine.account,
            config.domain,
            session=self._session,
            metrics=metrics,
        )
        self.link = LeafLink(
            config,
            run,
            state,
            metrics,
            Trimmer(
                state,
                metrics,
                allowed=self._publisher.recalled.is_set,
                prepare=self._known_requests.save,
                trimmed=self._trimmed,
            ),
            health,
            self._waits,
            LinkHooks(self._looked, self._books.last, self._connection.renew, self._store_lost),
        )
        self._sender = Sender(
            self._publisher,
            ledgers,
            domain=config.domain,
            run=run,
            window=publish.window,
            metrics=metrics,
            on_stored=self._stored,
            on_full=self.link.controller.announce_now,
            on_stuck=self._connection.renew,
        )
        own = contract.DEFAULT_CLASS if contract.DEFAULT_CLASS in self._classes else next(iter(self._classes))
        self._horizon_report = TimeToLossReport(self.link.time_to_loss, own, metrics)
        self._settings = Overrides(state, self._setters(), this_moment())
        self._commands = CommandRunner(
            own,
            state,
            make_handlers(
                AgentControls(
                    self.status,
                    self._publisher.flush,
                    self._settings,
                    by_command(reload) if reload else None,
                )
            ),
            metrics,
            system_clock(),
        )
        self._declared = mirror_controller(config, config.domain, metrics)
        self._recall: StreamRecovery
        self._completed = self._ending = False
        self._attached = asyncio.Event()
        self._run = run

    async def _progress(self, input_name: str) -> Progress | None:
        """How far an input is, once none of its batches is in flight."""
        while True:
            await self._sender.idle(input_name)
            await self._attached.wait()
            by_class = self._state.current.positions
            remembered = {cls: one[input_name] for cls, one in by_class.items() if input_name in one}
            try:
                return await self._recall.progress(input_name, self._classes, remembered)
            except JetStreamError as error:
                log.warning("the position of an input cannot be read yet", input=input_name, error=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set, then drain: inputs end, what is in flight is settled, the run is
        closed. Whatever fails beside the publish path is started again; a fault in that path itself ends the
        agent, for what it had acknowledged could no longer be answered for."""
        taking = asyncio.Event()
        self._settings.restore()
        async with asyncio.TaskGroup() as group:
            sending = (self._sender.run(), self._sender.run_retries(), self._sender.run_checks())
            tasks = [group.create_task(part) for part in sending]
            services = {
                "connection": self._connection.run,
                "ledger": self._books.run,
                "clock": self._clock.run,
                "acknowledgement": self._levels.run,
                "state": self._state.run,
                "requests": self._known_requests.run,
                "stored requests": self._known_requests.keep,
                **({"discards": self._discards.run} if self._discards else {}),
                "settings": self._settings.run,
                **self.link.services(),
            }
            if self._declared is not None:
                services["declared links"] = self._declared.run
            tasks += [group.create_task(keep_serving(*service)) for service in services.items()]
            self._inputs.begin(group)
            own = [
                group.create_task(keep_running(one, self._reception, taking, self._metrics), name=one.name)
                for one in (self._commands, self._horizon_report)
            ]
            await stopping.wait()
            taking.set()
            self._inputs.stop()
            parts = (self._publisher, self._sender, self._books, self._state)
            await drain([*self._inputs.tasks, *own], *parts, self._config.publish.drain)
            self._ending = True
            for task in tasks:
                task.cancel()

    async def apply(self, new: Applied) -> None:
        """Let a configuration hold of which only inputs, rules and logging are others. Inputs that did not
        change take no notice."""
        self._config = new.config
        if new.change.log:
            logs.set_up(new.config.log.level, new.config.log.format)
        await self._inputs.apply(new)
        self._settings.replace_setters(self._setters())

    def _setters(self) -> dict[str, Setter]:
        return make_setters(self._config, self._publisher, self._inputs.switches, self.link.controller)

    def status(self) -> Mapping[str, Any]:
        """What `/status` shows."""
        return {
            "domain": self._config.domain,
            "role": "leaf",
            "run": self._run,
            "machine": self._state.current.machine,
            "link": self.link.row(),
            "classes": {
                name: {
                    **self.link.class_row(name),
                    "readings": asdict(self._books.last(name).readings),
                    "discarded": self._discards.status(name),
                }
                for name in self._classes
            },
            "links": [
                *self.link.mirror_rows(),
                *(self._declared.status() if self._declared is not None else ()),
            ],
            "inputs": self._inputs.names,
            "acknowledgement": self._levels.meanings(),
            "settings": self._settings.shown(),
            "users": users_digest(self._config.user),
        }

    def _trimmed(self, cls: str, first: int, last: int) -> None:
        self._discards.trimmed(cls, first, last)
        self._sender.has_room(cls)

    def ready(self) -> tuple[bool, str]:
        """Whether readings can be stored, and why not."""
        if self._attached.is_set():
            return True, "the local stream takes readings"
        why = self._health.unstarted or "the local NATS server does not answer or its stream is not ready"
        return False, why

    def sentence(self) -> str:
        """How the link is."""
        return self.link.status.sentence

    def stalled(self) -> float:
        """Seconds for which readings have waited and nothing of the publish path has moved."""
        return self._sender.stalled()

    def _stored(self, batch: BatchStored) -> None:
        self._books.stored(batch)
        self._waits.stored(batch.id.cls, batch.seq, str(batch.id))

    def _store_lost(self, cls: str) -> None:
        self._publisher.store_lost(cls)
        self._sender.store_lost(cls)

    def _looked(self, cls: str, info: StreamInfo, confirmed: int) -> None:
        self._books.seen(cls, info)
        self._discards.seen(cls, confirmed)

    @contextlib.asynccontextmanager
    async def _session(self, nc: Client) -> AsyncIterator[None]:
        """All that is bound to one connection: begun once its streams are ready, ended with it. Raises
        `ServerError`, `JetStreamError`, `NatsError` or `OSError`."""
        try:
            self._health.admit(server_version(nc))
            js = JetStream(nc)
            recovery = StreamRecovery(nc, js, self._config.domain)
            infos, stored = await self._prepare(js, recovery)
            last = {name: info.last for name, info in infos.items()}
            with self._discards.connected(nc, js, infos), self._books.connected(js, infos):
                await self._books.open()
                sending = self._sender.connected(nc, nc.new_inbox(), last, stored, recovery.message)
                async with sending:
                    with self.link.connected(nc, js), self._commands.connected(js), self._clock.connected(js):
                        self._recall = recovery
                        self._attached.set()
                        try:
                            yield
                        finally:
                            self._attached.clear()
        finally:
            if not self._ending:  # otherwise our own shutdown would be reported as a server outage
                self.link.show_unreachable()

    async def _prepare(
        self, js: JetStream, recovery: StreamRecovery
    ) -> tuple[dict[str, StreamInfo], dict[tuple[str, str], int]]:
        """Make the streams ready. Returns them by class, and which batches in flight they hold already, by
        subject and id with their sequences."""
        infos: dict[str, StreamInfo] = {}
        stored: dict[tuple[str, str], int] = {}
        mqtt = self._config.nats.mqtt.on
        for stream in stream_configs.mqtt_streams() if mqtt else ():
            await js.ensure_stream(stream)
        pulls = [input_.name for input_ in self._config.input if input_.pulls]
        await note_lost_positions(js, self._config.domain, self._classes, pulls, self._state.current)
        for name, cls in self._classes.items():
            info, verdict = await prepare_stream(js, self._config.domain, cls, self._state, mqtt=mqtt)
            await ensure_rate(js, self._config.domain, cls, self._state.current.epochs[name])
            if verdict is not None:
                self.link.epoch_begun(name, verdict)
            if not self._completed:
                await self._complete_run_before(recovery, name, info)
            if (floor := self._sender.floor(name)) is not None:
                stored |= await recovery.ids_above(name, floor)
            infos[name] = info
            await keep_readers(js, info.name, readers(self._config, name))
            self._waits.began(name, info.last)
        self._completed = True
        return infos, stored

    async def _attached_recall(self) -> StreamRecovery:
        await self._attached.wait()
        return self._recall

    async def _complete_run_before(self, recall: StreamRecovery, cls: str, info: StreamInfo) -> None:
        known = self._books.remembered.get(cls)
        since: list[StoredHeaders] = []
        if known is not None and known.created == info.created and info.last > known.seq:
            since = await recall.batches_above(cls, known.seq)
        self._books.recall(cls, info.created, since)
