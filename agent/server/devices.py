"""Controls the MQTT listener, so that its faults affect nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import structs

from agent.base.logs import LogEdge, Sparse
from agent.base.metrics import Metrics
from agent.base.nats_server import ServerError
from agent.config import Config
from agent.server.health import ServerHealth
from agent.server.process import EmbeddedServer, port_problem
from agent.server.refusals import Refusal, RefusalLog
from agent.server.setup import mqtt_listener, mqtt_problems
from agent.server.values import LeafConfig, MqttListener

_LOOK_SECONDS: Final = 2.0
_SOON_SECONDS: Final = 0.2
_SAVE_SECONDS: Final = 60.0

log = structlog.get_logger("mqtt")


class Devices:
    """Controls one server's listener. `ready` tells whether its streams exist; `memory` is the file of
    refusals.
    """

    def __init__(
        self,
        config: Config,
        server: EmbeddedServer,
        health: ServerHealth,
        metrics: Metrics,
        ready: Callable[[], bool],
    ) -> None:
        self._config, self._server, self._health, self._metrics = config, server, health, metrics
        self._ready = ready
        memory = config.state_dir / "mqtt" / "refusals.json"
        self._refusals = RefusalLog(server.log_file, memory)
        self._shut_out = LogEdge(log, "all MQTT users are let in", error=True)
        self._failing = LogEdge(log, "the server takes the MQTT listener", error=True)
        self._reading = LogEdge(log, "the server's log is read again")
        self._sparse = Sparse()
        self._doubted: MqttListener | None = None
        self._saved, self._dirty = float("-inf"), False

    async def run(self) -> None:
        """Run until cancelled."""
        self._refusals.load()
        while True:
            await asyncio.to_thread(self._read)
            await self._open()
            self._report()
            await asyncio.sleep(_LOOK_SECONDS if self._is_open() else _SOON_SECONDS)

    async def _open(self) -> None:
        """Admit devices once their data is stored."""
        has = self._server.config.mqtt if isinstance(self._server.config, LeafConfig) else None
        wanted = await asyncio.to_thread(mqtt_listener, self._config)
        if has is None or wanted is None:
            return
        is_open = has.open or self._ready()
        wanted = structs.replace(wanted, open=is_open)
        if wanted.shut is None and has.shut is not None:
            wanted = structs.replace(wanted, shut=await port_problem(wanted.listen))
        if wanted == has:
            self._doubted = None
            return
        # A file that is being replaced lacks something for a moment.
        loses = wanted.shut is not None or len(wanted.users) < len(has.users)
        if loses and self._doubted != wanted:
            self._doubted = wanted
            return
        try:
            await self._server.set_mqtt(wanted)
        except ServerError as error:
            self._failing.begin("MQTT listener not changed; retried", reason=str(error))
        else:
            self._failing.end()

    def _is_open(self) -> bool:
        config = self._server.config
        return isinstance(config, LeafConfig) and config.mqtt is not None and config.mqtt.open

    def _read(self) -> None:
        try:
            found = self._refusals.read()
            self._dirty |= bool(found)
            if self._dirty and time.monotonic() - self._saved > _SAVE_SECONDS:
                self._refusals.save()
                self._saved, self._dirty = time.monotonic(), False
        except OSError as error:
            self._reading.begin("refused MQTT devices not counted", reason=str(error))
            return
        self._reading.end()
        for refusal in found:
            self._metrics.mqtt_refusals.labels(refusal.reason).inc()
            self._warn(refusal)

    def _warn(self, refusal: Refusal) -> None:
        facts = {name: text for name, text in structs.asdict(refusal).items() if name != "at"}
        self._sparse.report(log.warning, "MQTT device refused", **facts)

    def _report(self) -> None:
        has = self._server.config.mqtt if isinstance(self._server.config, LeafConfig) else None
        problems = [] if has is None else mqtt_problems(self._config, has)
        if problems:
            self._shut_out.begin("MQTT devices shut out", reason="; ".join(problems))
        elif self._is_open():
            self._shut_out.end()
        self._metrics.mqtt_up.set(not problems and self._is_open())
        self._health.devices = {"problems": problems, **self._refusals.seen.row()}
