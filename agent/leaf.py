"""The agent of a leaf: its parts put together, and the order in which they begin and end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import structlog
from nats.aio.client import Client

from agent import contract
from agent.accumulator import Limits
from agent.bookkeeping import Books
from agent.clock import ClockReader
from agent.config import Config
from agent.connection import Connection
from agent.contract import H_MESSAGE_ID, H_POSITION, H_REQUESTS, ContractError
from agent.intake import Chunk, Input
from agent.jetstream import JetStream, JetStreamError, StreamInfo
from agent.ledger import ClassLedger
from agent.link.events import LinkEvents
from agent.link.local import make_ready
from agent.link.uplink import Uplink
from agent.metrics import Metrics
from agent.publisher import Publisher
from agent.requests import KNOWN_SECONDS
from agent.sender import Sender
from agent.server.setup import identities
from agent.state import StateFile
from agent.supervision import keep_running
from agent.tail import read_headers

log = structlog.get_logger("leaf")


class Leaf:
    """One run of a leaf's agent. Also the `Intake` of its inputs."""

    def __init__(self, config: Config, state: StateFile, metrics: Metrics, inputs: Sequence[Input]) -> None:
        self._config, self._state, self._metrics, self._inputs = config, state, metrics, inputs
        self._classes = {cls.name: cls for cls in config.class_}
        run = contract.new_run()
        ledgers = {name: ClassLedger(config.domain, name, run) for name in self._classes}
        clock = ClockReader()
        publish = config.publish
        self._books = Books(config.domain, run, ledgers, state)
        self._publisher = Publisher(
            Limits(publish.batch_bytes, publish.batch_readings, publish.linger), publish.in_flight, metrics
        )
        self._uplink = Uplink(
            domain=config.domain,
            run=run,
            classes=self._classes,
            versions={"agent": version("petiole")},
            state=state,
            metrics=metrics,
            ledger=self._books.last,
            clock=lambda: str(clock.read()),
        )
        mine = identities(config)
        url = f"nats://{config.nats.listen}"
        self._connection = Connection(
            url, mine.account, config.domain, prepare=self._prepare, ended=self._detach, metrics=metrics
        )
        self._sender = Sender(
            self._publisher,
            ledgers,
            domain=config.domain,
            run=run,
            window=publish.window,
            metrics=metrics,
            on_ack=self._books.acked,
            on_full=lambda _cls: self._uplink.announce_now(),
            on_stuck=self._connection.renew,
        )
        self._events: LinkEvents | None = None
        if mine.system is not None:
            self._events = LinkEvents(url, mine.system, config.domain, self._uplink.announce_now)
        self._server: tuple[Client, JetStream] | None = None
        self._recalled = False
        self._attached = asyncio.Event()
        self._run = run

    @property
    def domain(self) -> str:
        """The domain of this machine."""
        return self._config.domain

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk, as `Intake.submit` says."""
        await self._publisher.submit(input_name, cls, chunk)

    async def position(self, input_name: str, cls: str) -> str | None:
        """The position of an input's last stored batch, once none of its batches is in flight."""
        await self._sender.idle(input_name, cls)
        while True:
            await self._attached.wait()
            try:
                if self._server is not None:
                    return await self._stored_position(self._server[1], input_name, cls)
            except JetStreamError as error:
                log.warning("the position of an input cannot be read yet", input=input_name, error=str(error))
                await asyncio.sleep(1.0)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until `stopping` is set, then drain: inputs end, what is in flight is settled, the run is
        closed."""
        taking = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            services = [
                self._connection.run(),
                self._sender.run(),
                self._sender.run_retries(),
                self._uplink.run(),
                self._books.run(),
                self._state.run(),
                self._remember_requests(),
            ]
            if self._events is not None:
                services.append(self._events.run())
            tasks = [group.create_task(service) for service in services]
            inputs = [
                group.create_task(keep_running(one, self, taking, self._metrics), name=one.name)
                for one in self._inputs
            ]
            await stopping.wait()
            await self._drain(inputs, taking)
            for task in tasks:
                task.cancel()

    def status(self) -> Mapping[str, Any]:
        """What `/status` shows."""
        link = self._uplink.link
        return {
            "domain": self._config.domain,
            "role": "leaf",
            "run": self._run,
            "machine": self._state.current.machine,
            "link": {"linked": link.linked, "state": link.sentence},
            "classes": {
                name: {
                    "epoch": self._state.current.epochs.get(name),
                    "state": one.state,
                    "last": one.last,
                    "confirmed": one.confirmed,
                    "hub_stream": one.hub_stream,
                    "readings": asdict(self._books.last(name).readings),
                }
                for name, one in link.classes.items()
            },
            "inputs": [one.name for one in self._inputs],
        }

    def ready(self) -> tuple[bool, str]:
        """Whether readings can be stored, and why not."""
        if self._attached.is_set():
            return True, "the local stream takes readings"
        return False, "the local NATS server does not answer or its stream is not ready"

    async def _prepare(self, nc: Client) -> None:
        js = JetStream(nc)
        infos: dict[str, StreamInfo] = {}
        stored: dict[str, int] = {}
        for name, cls in self._classes.items():
            info, verdict = await make_ready(js, self._config.domain, cls, self._state)
            if verdict is not None:
                self._metrics.epochs.labels(name, verdict.why.value).inc()
                self._uplink.forget_confirmed(name)
            if not self._recalled:
                await self._recall(nc, js, name, info)
            if (floor := self._sender.floor(name)) is not None:
                stored |= await self._stored_since(nc, js, name, floor)
            infos[name] = info
        self._recalled = True
        self._books.attach(js, infos)
        await self._books.open()
        await self._sender.attach(
            nc, nc.new_inbox(), {name: info.last for name, info in infos.items()}, stored
        )
        self._uplink.attach(nc, js)
        self._server = (nc, js)
        self._attached.set()

    def _detach(self) -> None:
        self._attached.clear()
        self._server = None
        self._sender.detach()
        self._books.detach()
        self._uplink.detach()

    async def _recall(self, nc: Client, js: JetStream, cls: str, info: StreamInfo) -> None:
        known = self._books.remembered.get(cls)
        since = []
        if known is not None and known.created == info.created and info.last > known.seq:
            since = await read_headers(nc, js, info.name, self._batches_from(cls, known.seq + 1))
        self._books.recall(cls, info.created, since)

    async def _stored_since(self, nc: Client, js: JetStream, cls: str, floor: int) -> dict[str, int]:
        stream = contract.leaf_stream(self._config.domain, cls)
        found = await read_headers(nc, js, stream, self._batches_from(cls, floor + 1))
        return {
            message.headers[H_MESSAGE_ID]: message.seq for message in found if H_MESSAGE_ID in message.headers
        }

    def _batches_from(self, cls: str, seq: int) -> dict[str, Any]:
        subject = contract.batch_subject(self._config.domain, cls, ">")
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": seq, "filter_subject": subject}

    async def _stored_position(self, js: JetStream, input_name: str, cls: str) -> str | None:
        domain = self._config.domain
        subject = contract.batch_subject(domain, cls, input_name)
        message = await js.get_message(contract.leaf_stream(domain, cls), last_by_subject=subject)
        return None if message is None else message.headers.get(H_POSITION)

    async def _remember_requests(self) -> None:
        """Read back which requests were stored in the last ten minutes; keyed requests wait for it."""
        while True:
            await self._attached.wait()
            server = self._server
            if server is None:
                continue
            try:
                for cls in self._classes:
                    await self._remember_requests_of(*server, cls)
            except (JetStreamError, OSError) as error:
                log.warning("idempotency keys cannot be read back yet", error=str(error))
                await asyncio.sleep(1.0)
            else:
                self._publisher.recalled.set()
                return

    async def _remember_requests_of(self, nc: Client, js: JetStream, cls: str) -> None:
        now = time.time()
        start = {
            "deliver_policy": "by_start_time",
            "opt_start_time": datetime.fromtimestamp(now - KNOWN_SECONDS, UTC)
            .isoformat()
            .replace("+00:00", "Z"),
            "filter_subject": contract.batch_subject(self._config.domain, cls, ">"),
        }
        stream = contract.leaf_stream(self._config.domain, cls)
        monotonic = asyncio.get_running_loop().time()
        for message in await read_headers(nc, js, stream, start):
            try:
                requests = contract.parse_requests(message.headers.get(H_REQUESTS, ""))
            except ContractError as error:
                log.warning("a stored batch names its requests badly", seq=message.seq, error=str(error))
                continue
            for request in requests:
                self._publisher.requests.store(request, monotonic - max(0.0, now - message.time))

    async def _drain(self, inputs: Sequence[asyncio.Task[None]], taking: asyncio.Event) -> None:
        log.info("draining", at_most_seconds=self._config.publish.drain)
        taking.set()
        try:
            async with asyncio.timeout(self._config.publish.drain):
                self._publisher.stop()
                await asyncio.gather(*inputs)
                self._publisher.stop()
                await self._sender.drained()
                await self._books.close()
                log.info("drained: all that was accepted is stored, the run is closed")
        except TimeoutError:
            log.error("not drained in time: the run stays open, its tail is named by the audit")
        except JetStreamError as error:
            log.error("the run could not be closed, its tail is named by the audit", error=str(error))
        self._publisher.abandon()
        self._sender.abandon()
        for task in inputs:
            task.cancel()
        await self._state.save()
