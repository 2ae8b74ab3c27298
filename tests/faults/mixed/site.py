"""A round's world, and what its faults and moments do to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import zstandard

from agent.contract import DEFAULT_CLASS, MAX_UNPACKED_BYTES, batch_subject
from tests.faults.mixed.dimensions import Input, Scenario
from tests.faults.mixed.senders import ForgingDevice, PrintingDevice
from tests.faults.mixed.units import Supervisor, Unit
from tests.faults.oracle.numbered import NUMBER
from tests.faults.tools.disk import SmallDisk
from tests.faults.world.devices import Device, HttpDevice
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.machine import Machine, is_stopped, lives
from tests.faults.world.tcp_proxy import TcpProxy

POLL_SECONDS = 0.01
_BEGINS_SECONDS = 3.0
_ZSTD = b"\x28\xb5\x2f\xfd"


class Site:
    """The fault environment of a round. `chance` decides what the scenario leaves open."""

    jobs: threading.Thread | None = None
    supervisor: Supervisor
    hub_unit: Unit
    agent_unit: Unit
    server_unit: Unit | None
    """That of a leaf's server of its own."""
    forger: ForgingDevice | None = None
    printing: PrintingDevice | None = None
    pulled: Device | None = None
    """Who sends to an input that reads on from where it was."""

    def __init__(
        self, environment: FaultEnvironment, scenario: Scenario, disk: SmallDisk | None, chance: random.Random
    ) -> None:
        self.environment, self.scenario, self.disk, self.chance = environment, scenario, disk, chance
        self.file = environment.leaf.member.config
        self.text = self.file.read_text()
        """The leaf's configuration as it is meant."""
        self.file_is_good = True
        self.copies: dict[Machine, Path] = {}
        self._link: list[str] = []
        self._server: int | None = None

    def ended(self) -> None:
        """Look no more at what is printed."""
        if self.printing is not None:
            self.printing.give_up()
            self.printing.join()

    # Notes of what was done.

    def did(self, what: str, trace: Callable[[], str | None] = lambda: "it was done") -> None:
        """A fault is there; `trace` is what is seen of it in the end."""
        self.environment.injected.add(what, lambda _since: trace())

    # The link, which more than one fault may hold.

    def hold_link(self, how: str) -> None:
        """Cut or stall it; it stays so until each of those that held it has let it go."""
        self._link.append(how)
        self._set_link()

    def release_link(self, how: str) -> None:
        """Let it go again."""
        self._link.remove(how)
        self._set_link()

    def connections(self) -> int:
        """How many connections of the link have been let through."""
        proxy = self.environment.link.proxy
        assert isinstance(proxy, TcpProxy)
        return proxy.carried

    def _set_link(self) -> None:
        proxy = self.environment.link.proxy
        if "cut" in self._link:
            proxy.cut()
        else:
            proxy.restore()
            if "stall" in self._link:
                proxy.stall()

    # Processes.

    @property
    def units(self) -> list[Unit]:
        """All that is supervised."""
        return [self.hub_unit, self.agent_unit, *self.units_of(self.environment.leaf)]

    def watched(self) -> bool:
        """Whether the leaf's agent runs, and the server at whose stream it looks."""
        leaf = self.environment.leaf
        if self._server is None or not lives(self._server):
            self._server = leaf.nats.pid  # found among all processes, which is not for every look
        pids = (leaf.agent.pid, self._server)
        return all(pid is not None and not is_stopped(pid) for pid in pids)

    def units_of(self, machine: Machine) -> list[Unit]:
        """What keeps a machine's server running, beside its agent."""
        own = machine is self.environment.leaf and self.server_unit is not None
        return [self.server_unit] if own and self.server_unit is not None else []

    @contextmanager
    def without_server(self, machine: Machine) -> Iterator[None]:
        """A machine's server is dead, and nobody starts it meanwhile."""
        pid = machine.agent.pid
        agent_unit = self.agent_unit if machine is self.environment.leaf else self.hub_unit
        units = [agent_unit, *self.units_of(machine)]
        were = [unit.held for unit in units]
        for unit in units:
            unit.held = True
        stopped = pid is not None and not is_stopped(pid)
        if pid is not None and stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            kill(machine.nats.pid)
            yield
        finally:
            if pid is not None and stopped:
                with suppress(ProcessLookupError):  # the other fault may have killed it
                    os.kill(pid, signal.SIGCONT)
            for unit, was in zip(units, were, strict=True):
                unit.held = was

    def copy(self, machine: Machine) -> None:
        """Keep the store of a machine as it is now."""
        copy = machine.member.directory / "copy"
        with self.without_server(machine):
            shutil.copytree(machine.store, copy)
        self.copies[machine] = copy

    def hup(self) -> None:
        """Have the leaf's agent read its file, where it runs. One that has only just begun does not listen
        for the signal yet, and reads the file anyway."""
        pid = self.environment.leaf.agent.pid
        if pid is not None:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                young = _BEGINS_SECONDS - (time.time() - psutil.Process(pid).create_time())
                time.sleep(max(0.0, young))
                os.kill(pid, signal.SIGHUP)

    # Senders.

    @property
    def poster(self) -> HttpDevice:
        """A device over HTTP."""
        return next(one for one in self.environment.load.devices if isinstance(one, HttpDevice))

    def wait_asked(self, seconds: float = 3.0) -> bool:
        """Return when a request has been under way for a moment."""
        sent = self.poster.sent
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            before = sent.sent
            if sent.acknowledged < before:
                time.sleep(0.2)
                if sent.acknowledged < before:
                    return True
            time.sleep(POLL_SECONDS)
        return False

    def wait_answered(self, seconds: float = 2.0) -> bool:
        """Return at the next answer."""
        sent = self.poster.sent
        before, deadline = sent.acknowledged, time.monotonic() + seconds
        while time.monotonic() < deadline:
            if sent.acknowledged > before:
                return True
            time.sleep(0.001)
        return False

    def newest_number(self) -> int:
        """The highest number in the newest batch of the round's input; 0 where there is none, or nobody
        answers."""
        name = {Input.FILE: "file", Input.MQTT: "mqtt", Input.EXEC: "exec"}[self.scenario.input]
        leaf = self.environment.leaf
        payload = self.environment.newest(leaf, batch_subject(leaf.member.domain, DEFAULT_CLASS, name)) or b""
        if payload.startswith(_ZSTD):
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=MAX_UNPACKED_BYTES)
        return max((int(json.loads(line)["tags"][NUMBER]) for line in payload.splitlines()), default=0)

    def lasts(self, least: float, most: float) -> None:
        """Let it be for a while."""
        time.sleep(self.chance.uniform(least, most))


def kill(pid: int | None) -> None:
    """End a process, where there is one; returns when it is gone."""
    if pid is None:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while lives(pid):
        assert time.monotonic() < deadline, f"process {pid} does not end"
        time.sleep(POLL_SECONDS)
