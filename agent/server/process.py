"""Runs the embedded nats-server, which outlives its agent.

The agent starts or adopts it, and restarts it after its death. The command line identifies the process, the
greeting confirms it.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import structlog
from msgspec import structs

from agent.base.logs import LogEdge
from agent.base.nats_server import RenderError, ServerError, find_binary, version_of
from agent.base.wait import Backoff, event_within
from agent.config.keys import SeedError
from agent.server.child import Greeting, Watched, greeting, need_free, process_of, reap, spawn
from agent.server.values import HubConfig, LeafConfig, MqttListener, ServerConfig, address_of
from agent.server.workspace import Workspace, store_problem

Start = Literal["started", "adopted", "reloaded", "restarted"]

START_SECONDS = 120.0
"""Wait for the greeting, after recovery of a large store."""
STOP_SECONDS = 10.0
RELOAD_SECONDS = 60.0
"""Wait for a reload; ten thousand links took over five seconds, and a restart would cut them."""

_POLL = 0.02
_FAILED_RELOAD = re.compile(r"Failed to reload server configuration: (?P<why>.+)\n")
_NEEDS_START = "not support"
_FIRST_DELAY, _LONGEST_DELAY = 0.2, 30.0
_STEADY_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class EmbeddedServer:
    """One nats-server with files in `directory`; sets `pid_file` and `log_file`.

    `start`, then run `supervise`; `release` leaves it running, `stop` ends it. `report` gets each start's
    failure or None.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: Path,
        *,
        binary: Path | None = None,
        report: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._files = Workspace(directory.resolve())
        self.config = self._placed(config)
        self._binary, self._report = binary, report
        self._failing = LogEdge(_log, error=True)
        self._process: Watched | None = None
        self._starting, self._changing = asyncio.Lock(), asyncio.Lock()

    @property
    def url(self) -> str:
        """The client URL."""
        return f"nats://{self.config.listen}"

    @property
    def log_file(self) -> Path:
        return self._files.log

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.ended.is_set() else self._process.pid

    @property
    def is_starting(self) -> bool:
        """Whether a start or takeover is pending, up to `START_SECONDS`."""
        return self._starting.locked()

    async def start(self) -> Start:
        """Start and wait for its answer. Raises `ServerError`."""
        async with self._starting:
            try:
                how = await self._start()
            except (OSError, SeedError, RenderError, ServerError) as error:
                if self.pid is None:
                    self._report(str(error))
                raise ServerError(str(error)) from error
            self._report(None)
            return how

    def _placed(self, config: ServerConfig) -> ServerConfig:
        if config.pid_file == self._files.pid:
            return config  # to replace a value checks the keys of all leaves again
        return structs.replace(config, pid_file=self._files.pid, log_file=self._files.log)

    async def set_config(self, config: ServerConfig) -> None:
        """Apply a configuration; not applied after `ServerError`."""
        await self._change(lambda _: self._placed(config))

    async def set_link(self, open_: bool) -> None:
        """Open or close the hub link; unchanged after `ServerError`."""
        if isinstance(self.config, LeafConfig) and self.config.link_open is not open_:
            await self._change(lambda config: structs.replace(config, link_open=open_))

    async def set_mqtt(self, listener: MqttListener) -> None:
        """Change the MQTT listener; unchanged after `ServerError`."""
        await self._change(lambda config: structs.replace(config, mqtt=listener))

    async def _change(self, changed: Callable[[Any], ServerConfig]) -> None:
        async with self._changing:  # or one that fails would take another back
            before = self.config
            self.config = changed(before)
            try:
                await self.start()
            except ServerError:
                self.config = before
                raise

    async def try_start(self) -> None:
        """Start, logging a failure once. Raises `RenderError`, our own mistake."""
        try:
            how = await self.start()
        except ServerError as error:
            if isinstance(error.__cause__, RenderError):
                raise error.__cause__ from None
            self._forget()
            self._failing.begin("nats-server not started; retried", reason=str(error))
        else:
            self._failing.end()
            _log.info("nats-server answers", server=self.config.server_name, how=how, pid=self.pid)

    async def supervise(self) -> None:
        """Restart with backoff until cancelled."""
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        while True:
            process = self._process
            if process is not None:
                began = time.monotonic()
                await process.ended.wait()
                async with self._starting:
                    if self._process is not process and self.pid is not None:
                        continue  # a change of its configuration has started it again
                    self._forget()
                if time.monotonic() - began > _STEADY_SECONDS:
                    backoff.reset()
                _log.warning("nats-server ended; restarting it", server=self.config.server_name)
            await asyncio.sleep(backoff.next())
            await self.try_start()

    async def end(self) -> None:
        """End the process for a restart. Raises `ServerError`."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.signal(number)
            if await event_within(process.ended, STOP_SECONDS):
                break
        else:
            raise ServerError(f"nats-server (process {process.pid}) does not end, not even by SIGKILL")
        if self._process is process:
            self._forget()

    async def stop(self) -> int | None:
        """Stop, by SIGKILL after ten seconds, and release; returns the process or None. Raises `ServerError`
        if owned elsewhere.
        """
        self._files.lock()
        try:
            pid = process_of(self._files.configuration)
            if pid is not None:
                self._watch(pid)
            await self.end()
            return pid
        finally:
            self.release()

    def release(self) -> None:
        """Leave the server running."""
        self._forget()
        self._files.unlock()

    async def _start(self) -> Start:
        self._files.lock()
        if isinstance(self.config, HubConfig) and (problem := store_problem(self.config)) is not None:
            raise ServerError(problem)
        binary = self._binary or find_binary()
        version = await version_of(binary)
        digest = await self._files.write(self.config, binary)
        pid = process_of(self._files.configuration)
        if pid is None or not self._watch(pid):
            await self._spawn(binary, digest)
            return "started"
        how = await self._adopt(pid, version, digest)
        if how is None:
            await self.end()
            await self._spawn(binary, digest)
            return "restarted"
        return how

    async def _adopt(self, pid: int, version: str, digest: str) -> Start | None:
        """Adopt the running server; None if a restart is needed."""
        applied = self._files.applied() == (pid, digest)
        # After one reload the service imports of a new account lead nowhere. One reload suffices once
        # findings/nats-first-reload-leaves-new-service-imports-dead.sh reports a change.
        for _ in range(0 if applied else 2 if self.config.users else 1):
            if not await self._reload():
                return None
        answered = await self._answer(START_SECONDS if applied else RELOAD_SECONDS)
        if answered is None or answered.version != version:
            return None
        self._files.note_applied(pid, digest)
        return "adopted" if applied else "reloaded"

    async def _reload(self) -> bool:
        """Reload; False if a restart is needed. Raises `ServerError` for a wrong configuration."""
        assert self._process is not None
        read = self._files.log_reader()
        self._process.signal(signal.SIGHUP)
        deadline = time.monotonic() + RELOAD_SECONDS
        while time.monotonic() < deadline and not self._process.ended.is_set():
            logged = read()
            if "Reloaded server configuration" in logged:
                return True
            if failed := _FAILED_RELOAD.search(logged):
                if _NEEDS_START in failed["why"]:
                    return False
                raise ServerError(
                    f"nats-server refuses its new configuration and goes on with the old: {failed['why']}"
                )
            await asyncio.sleep(_POLL)
        return False

    async def _spawn(self, binary: Path, digest: str) -> None:
        mqtt = self.config.mqtt if isinstance(self.config, LeafConfig) else None
        if mqtt is not None and not mqtt.shut and (problem := await port_problem(mqtt.listen)):
            # Without its listener for devices the server still stores what the inputs take in.
            self.config = structs.replace(self.config, mqtt=structs.replace(mqtt, shut=problem))
            digest = await self._files.write(self.config, binary)
        await self._need_free_ports()
        read = self._files.log_reader()
        command = [str(binary), "-c", str(self._files.configuration)]
        pid = spawn(command, self._files.directory, self._files.output)
        self._watch(pid)
        if await self._answer(START_SECONDS) is None:
            what = "ended" if self.pid is None else f"does not answer on {self.config.listen}"
            await self.end()
            raise ServerError(f"nats-server {what}: {self._files.complaint(read())}")
        self._files.note_applied(pid, digest)

    async def _need_free_ports(self) -> None:
        listened = [self.config.listen]
        if isinstance(self.config, HubConfig):
            listened.append(self.config.leaf_listen)
            if self.config.cluster is not None:
                listened.append(self.config.cluster.listen)
        for listen in listened:
            await need_free(listen, address_of(listen))

    async def _answer(self, seconds: float) -> Greeting | None:
        """Return its greeting with JetStream; None at its end or silence."""
        assert self._process is not None
        address = address_of(self.config.listen)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._process.ended.is_set():
            said = await greeting(address)
            if isinstance(said, Greeting):
                mine = said.server_name == self.config.server_name and said.jetstream
                return said if mine else None
            await asyncio.sleep(_POLL)
        return None

    def _watch(self, pid: int) -> bool:
        """Watch a process; False if it has ended."""
        if self.pid != pid:
            self._forget()
            try:
                self._process = Watched(pid)
            except ProcessLookupError:
                return False
        return True

    def _forget(self) -> None:
        if self._process is not None:
            self._process.close()
            if self._process.ended.is_set():
                reap(self._process.pid)
            self._process = None


async def port_problem(listen: str) -> str | None:
    """Return why a server can't listen, or None."""
    try:
        await need_free(listen, address_of(listen))
    except ServerError as error:
        return str(error)
    return None
