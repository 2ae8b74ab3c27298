"""Assembles a leaf's agent, with the order of start and end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import structlog

from agent import contract
from agent.base import logs
from agent.base.clock import ClockReader
from agent.base.files import is_there
from agent.base.metrics import Metrics
from agent.base.supervisor import keep_serving
from agent.config import Config
from agent.config.keys import SeedError, receipt_signer
from agent.jetstream import JetStream
from agent.jetstream.connection import QuickClient, ServerConnection, server_version
from agent.leaf.acks import AckLevels, HubAckWaiters
from agent.leaf.clock import ClockMonitor
from agent.leaf.commands.handlers import AgentControls, make_handlers
from agent.leaf.commands.overrides import Overrides, Setter, make_setters
from agent.leaf.commands.runner import CommandRunner
from agent.leaf.events import (
    BatchStored,
    ConnectionStuck,
    EpochBegun,
    Events,
    LinkChanged,
    StoreLost,
    StreamFull,
    StreamSeen,
    StreamTrimmed,
)
from agent.leaf.input_notes import InputNotes
from agent.leaf.intake import Input
from agent.leaf.ledger import ClassLedger
from agent.leaf.ledger.evictions.service import EvictionMonitor
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.ledger.signer import RecordSigner
from agent.leaf.link.act import Trimmer
from agent.leaf.link.link import LeafLink, LinkView
from agent.leaf.link.observation import UplinkStatus
from agent.leaf.link.room import ALL_HELD, TimeToLossReport
from agent.leaf.publish.accumulator import BatchLimits
from agent.leaf.publish.core_intake import CoreIntake
from agent.leaf.publish.dead_letters import DeadLetterWriter
from agent.leaf.publish.idempotency_recovery import IdempotencyRecovery
from agent.leaf.publish.limits import Lingers
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.pull_chunks import PullChunkStore
from agent.leaf.publish.removed_classes import RemovedClasses
from agent.leaf.publish.sender import Sender
from agent.leaf.publish.stream_recovery import CurrentRecovery, ProgressReader, StreamRecovery
from agent.leaf.state_file import StateFile
from agent.leaf.states import LeafStates
from agent.mirrors import mirror_controller
from agent.process.input_runner import InputSet, drain, keep_running, levels_of, lingers_of
from agent.process.reload import Applied, Reloader, by_command
from agent.process.stream_setup import StreamSetup
from agent.server.health import ServerHealth
from agent.server.setup import RECEIPT_KEY, identities, key_file

log = structlog.get_logger("leaf")


class LeafAgent:
    """One run of a leaf's agent; inputs use `intake`."""

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
        domain, publish = config.domain, config.publish
        classes = self._classes = {cls.name: cls for cls in config.class_}
        run = self._run = contract.new_run()
        ledgers = {name: ClassLedger(domain, name, run) for name in classes}
        levels, lingers = levels_of(config), lingers_of(config)
        events = Events()
        self._evictions = EvictionMonitor(
            domain, run, classes, config.state_dir, state.current.epochs, ledgers, metrics
        )
        signer = self._signer = _record_signer(config, run)
        self._ledger_publisher = LedgerPublisher(domain, run, ledgers, state, self._evictions, signer)
        self._clock = ClockMonitor(domain, classes, state, metrics, self._evictions.stored)
        self._view = view = LinkView(config, metrics, health, events)
        self._levels = AckLevels(levels, health, lambda: view.status.hub_sync_seconds)
        self._waits = HubAckWaiters(self._view.sentence)
        self._publisher = Publisher(
            BatchLimits(
                publish.batch_bytes,
                publish.batch_readings,
                Lingers(
                    lingers,
                    {name: cls.linger for name, cls in classes.items() if cls.linger is not None},
                    config.linger,
                ),
                publish.batches_per_second,
            ),
            publish.in_flight,
            metrics,
            self._view.refusal,
            ledgers=ledgers,
            levels=levels,
            clock=self._clock.look,
            hub=self._waits,
        )
        self._publisher.admission.hub_takes = lambda: view.status.hub_max_payload
        view.time_to_loss.refusing = self._publisher.admission.refusing
        self._sender = Sender(
            self._publisher,
            ledgers,
            domain=domain,
            run=run,
            window=publish.window,
            metrics=metrics,
            events=events,
        )
        self._recovery = CurrentRecovery()
        self._removed = RemovedClasses(self._recovery, state, classes)
        discarding = [name for name, cls in classes.items() if cls.discard == "old"]
        self._progress = ProgressReader(self._recovery, state, classes, self._sender.idle)
        self._request_recovery = IdempotencyRecovery(
            config.state_dir, self._publisher, classes, discarding, self._progress.streams, self._recovery.get
        )
        self._notes = InputNotes(config.state_dir, state)
        self._core = self._core_intake(ledgers)
        self._inputs = InputSet(config, inputs, self._core, levels, lingers, metrics)
        self.intake = self._inputs.intake
        trimmer = Trimmer(
            state,
            metrics,
            events,
            allowed=self._publisher.recalled.is_set,
            prepare=self._request_recovery.save,
            note=self._evictions.trims,
        )
        self._states = LeafStates(view, classes, metrics, self._lost, self._inputs.wanted, state)
        self.link = LeafLink(
            config,
            run,
            state,
            self._view,
            trimmer,
            self._waits,
            self._ledger_publisher.last,
            self._states.announced,
        )
        self._setup = StreamSetup(self.link, state, self._sender, self._ledger_publisher, self._waits)
        self._connection = ServerConnection(
            config.nats.url,
            identities(config).account,
            domain,
            session=self._session,
            metrics=metrics,
        )
        self._mirrors = mirror_controller(config, metrics)
        self._settings = Overrides(state, self._setters(), ClockReader().look)
        own_class = contract.DEFAULT_CLASS if contract.DEFAULT_CLASS in classes else next(iter(classes))
        self._report = TimeToLossReport(self._view.time_to_loss, own_class, metrics)
        reloading = by_command(reload) if reload else None
        controls = AgentControls(self.status, self._publisher.batches.flush, self._settings, reloading)
        self._commands = CommandRunner(own_class, state, make_handlers(controls), metrics, ClockReader().look)
        self._ending = False
        self._subscribe(events, trimmer)

    def _lost(self, cls: str) -> int:
        """Return a class's lost readings since start: discarded, or refused after acceptance."""
        return self._evictions.lost[cls] + self._ledger_publisher.last(cls).readings.refused_late

    def _core_intake(self, ledgers: Mapping[str, ClassLedger]) -> CoreIntake:
        letters = DeadLetterWriter(self._publisher.submit, ledgers, self._metrics)
        chunks = PullChunkStore(
            self._publisher.submit,
            letters,
            self._progress.read,
            self._ledger_publisher.remember_position,
            lambda input_name: input_name in self._state.current.unplaced,
            self._reach,
        )
        return CoreIntake(self._config.domain, self._publisher, chunks, letters, self._notes)

    async def _reach(self, input_name: str) -> None:
        """Wait for a pull input's level, as `Publisher.reach`."""
        positions = self._state.current.positions
        classes = [cls for cls in self._classes if input_name in positions.get(cls, ())]
        await self._publisher.reach(input_name, classes)

    def _subscribe(self, events: Events, trimmer: Trimmer) -> None:
        """Subscribe the parts to events in order."""
        evictions, waits, controller = self._evictions, self._waits, self.link.controller
        events.on(
            BatchStored,
            self._ledger_publisher.stored,
            lambda batch: waits.stored(batch.id.cls, batch.seq, str(batch.id)),
            lambda batch: controller.idle.moved(batch.id.cls),
        )
        events.on(StreamFull, self._view.full, lambda _: controller.announce_now())
        events.on(StreamTrimmed, lambda trim: self._sender.has_room(trim.cls), self._view.trimmed)
        events.on(
            StreamSeen,
            lambda seen: self._ledger_publisher.seen(seen.cls, seen.info),
            lambda seen: evictions.seen(seen.cls, seen.confirmed),
            lambda seen: waits.reached(seen.cls, seen.confirmed),
            self._view.seen,
        )
        events.on(EpochBegun, lambda epoch: waits.reached(epoch.cls, 0), trimmer.epoch_begun)
        events.on(
            StoreLost,
            lambda lost: self._publisher.store_lost(lost.cls),
            lambda lost: self._sender.store_lost(lost.cls),
            self._notes.store_lost,
        )
        events.on(LinkChanged, self.link.changed)
        events.on(ConnectionStuck, lambda stuck: self._connection.renew(stuck.reason))

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping`, then drain and close the run.

        Failed services restart; a fault in the publish path ends the agent, whose accounts would be
        unreliable.
        """
        taking = asyncio.Event()
        self._settings.restore()
        async with asyncio.TaskGroup() as group:
            sending = (self._sender.run(), self._sender.run_retries(), self._sender.run_checks())
            tasks = [group.create_task(part) for part in sending]
            services = {
                "connection": self._connection.run,
                "ledger": self._ledger_publisher.run,
                "clock": self._clock.run,
                "acknowledgement": self._levels.run,
                "state": self._state.run,
                "removed classes": self._removed.run,
                "requests": self._request_recovery.run,
                "stored requests": self._request_recovery.keep,
                **({"discards": self._evictions.run} if self._evictions else {}),
                "settings": self._settings.run,
                **self.link.services(),
            }
            if self._mirrors is not None:
                services["declared links"] = self._mirrors.run
            tasks += [group.create_task(keep_serving(*service)) for service in services.items()]
            self._inputs.begin(group)
            own = [
                group.create_task(keep_running(part, self._core, taking, self._metrics), name=part.name)
                for part in (
                    self._commands,
                    *([self._report] if self._config.link.report_time_to_loss else ()),
                )
            ]
            await stopping.wait()
            taking.set()
            self._inputs.stop()
            parts = (self._publisher, self._sender, self._ledger_publisher, self._state)
            await drain([*self._inputs.tasks, *own], *parts, self._config.publish.drain)
            self._ending = True
            for task in tasks:
                task.cancel()

    async def apply(self, new: Applied) -> None:
        """Apply changed inputs, rules or logging; unchanged inputs continue."""
        self._config = new.config
        if "log" in new.change.live:
            logs.set_up(new.config.log.level, new.config.log.format)
        await self._inputs.apply(new)
        self._settings.replace_setters(self._setters())

    def _setters(self) -> dict[str, Setter]:
        return make_setters(self._config, self._publisher, self._inputs.switches, self.link.controller)

    def status(self) -> Mapping[str, Any]:
        return {
            "domain": self._config.domain,
            "role": "leaf",
            "run": self._run,
            "machine": self._state.current.machine,
            "receipt_key": None if self._signer is None else self._signer.public,
            "link": self.link.row(),
            "states": self._states.now(),
            "classes": {
                name: {
                    **self.link.class_row(name),
                    "readings": asdict(self._ledger_publisher.last(name).readings),
                    "discarded": self._evictions.status(name),
                }
                for name in self._classes
            },
            "removed_classes": self._removed.rows,
            "links": [
                *self.link.mirror_rows(),
                *(self._mirrors.status() if self._mirrors is not None else ()),
            ],
            "inputs": self._inputs.names,
            "input_warnings": {
                name: warning for name in self._inputs.names if (warning := logs.last_warning(name))
            },
            "acknowledgement": self._levels.meanings(),
            "settings": self._settings.shown(),
            "users": self._setup.users,
        }

    def ready(self) -> tuple[bool, str]:
        """Return whether readings can be stored, and why not."""
        if self._recovery.is_connected:
            return True, "the local stream takes readings"
        why = self._health.unstarted or "the local NATS server does not answer or its stream is not ready"
        return False, why

    def accepts(self) -> tuple[bool, str]:
        """Return whether readings are accepted now: as `ready`, but False when all classes are held back."""
        reasons = [self._view.held_back(name) for name in self._classes]
        if not self._recovery.is_connected or None in reasons:
            return self.ready()
        return False, f"{ALL_HELD}: {reasons[0]}"

    def sentence(self) -> str:
        return self.link.status.sentence

    def certificates(self) -> Mapping[str, bytes]:
        """Return the hub's certificates by address."""
        return self.link.cause.certificates

    def uplink(self) -> UplinkStatus | None:
        return self.link.uplink

    def stalled(self) -> float:
        """Return seconds of a stalled publish path."""
        return self._sender.stalled()

    @contextlib.asynccontextmanager
    async def _session(self, nc: QuickClient) -> AsyncIterator[None]:
        """Run everything bound to one connection, after the streams are ready.

        Raises `ServerError`, `JetStreamError`, `NatsError` or `OSError`.
        """
        try:
            self._health.admit(server_version(nc))
            js = JetStream(nc)
            recovery = StreamRecovery(nc, js, self._config.domain)
            ready = await self._setup.prepare(self._config, js, recovery)
            infos = ready.infos
            with self._evictions.connected(nc, js, infos), self._ledger_publisher.connected(js, infos):
                await self._ledger_publisher.open()
                sending = self._sender.connected(
                    nc, nc.new_inbox(), ready.last, ready.stored, recovery.message
                )
                async with sending:
                    with (
                        self.link.connected(nc, js),
                        self._commands.connected(js),
                        self._clock.connected(js),
                        self._recovery.connected(recovery),
                    ):
                        yield
        finally:
            if not self._ending:  # otherwise our own shutdown would be reported as a server outage
                self.link.show_unreachable()


def _record_signer(config: Config, run: str) -> RecordSigner | None:
    """Return the signer of ledger records, None without a usable key, so that readings still flow."""
    file = key_file(config, RECEIPT_KEY)
    if not is_there(file):
        return None
    try:
        return RecordSigner(config.domain, run, *receipt_signer(file))
    except SeedError as error:
        log.error("receipt key refused", error=str(error), effect="ledger records are not signed")
        return None
