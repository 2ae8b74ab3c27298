"""Each fault: how it is made, and how it is mended. A victim that is down already is left so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tests.faults.mixed.dimensions import Fault
from tests.faults.mixed.site import Site, kill
from tests.faults.mixed.units import Unit
from tests.faults.oracle.numbered import HEAVY
from tests.faults.world.devices import HttpDevice
from tests.faults.world.machine import Machine, Program, is_stopped, lives
from tests.harness.agent_process import PETIOLE
from tests.harness.wait import wait_for

_FILLERS: Final = 20
_FULL_SECONDS: Final = 8.0
_COMMAND_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault of a round."""

    fault: Fault
    make: Callable[[], None]
    mend: Callable[[], None]


def injection(site: Site, fault: Fault) -> Injection:
    """A fault of this round."""
    make, mend = _WAYS[fault](site)
    return Injection(fault, make, mend)


_Way = tuple[Callable[[], None], Callable[[], None]]


def _killed(site: Site, program: Program, units: list[Unit]) -> _Way:
    def make() -> None:
        for unit in units:
            unit.held = True
        pid = program.pid
        site.did(f"{program.name} is killed" if pid else f"{program.name} does not run, and is left so")
        kill(pid)

    def mend() -> None:
        for unit in units:
            unit.held = False

    return make, mend


def _agent_stopped(site: Site) -> _Way:
    stopped: list[int] = []

    def make() -> None:
        pid = site.environment.leaf.agent.pid
        site.did("the agent of edge-1 is stopped" if pid else "the agent of edge-1 does not run")
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    def mend() -> None:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return make, mend


def _link(site: Site, how: str) -> _Way:
    def make() -> None:
        site.did(f"the link is held: {how}")
        site.hold_link(how)

    return make, lambda: site.release_link(how)


def _disk_full(site: Site) -> _Way:
    disk = site.disk
    assert disk is not None

    def make() -> None:
        site.did("the disk of edge-1, state and store, is full")
        disk.fill()

    def mend() -> None:
        disk.free()
        if site.server_unit is not None:
            # Its agent says that a server of its own has to be restarted after that.
            kill(site.environment.leaf.nats.pid)

    return make, mend


def _stream_full(site: Site) -> _Way:
    """Long texts, from so many senders that they are too much for the stream whether they are answered or
    not."""
    load, member = site.environment.load, site.environment.leaf.member
    heavy: list[HttpDevice] = []

    def refused() -> bool:
        return any(code in (429, 503) for _, code, _ in load.notes.refused)

    def discarded() -> bool:
        with suppress(AssertionError, OSError):
            return site.environment.leaf.metric("petiole_discarded_readings_total") > 0
        return False

    def make() -> None:
        site.hold_link("cut")
        site.did("the link is cut, and more comes than the stream of edge-1 holds")
        load.notes.refused.clear()
        for number in range(_FILLERS):
            series = load.series(member, f"{HEAVY}{number}", site.scenario.level)
            heavy.append(HttpDevice(member, *series, load.notes, 4, 1.0))
            load.start(heavy[-1])
        deadline = time.monotonic() + _FULL_SECONDS
        while not (refused() or discarded()):
            if time.monotonic() > deadline:
                site.environment.case.not_proven.append("the stream was not seen to be full")
                return
            time.sleep(0.1)

    def mend() -> None:
        for one in heavy:
            one.end()
        site.release_link("cut")

    return make, mend


def _store_lost(site: Site, machine: Machine) -> _Way:
    def make() -> None:
        with site.without_server(machine):
            site.did(f"the store of {machine.member.domain} is deleted")
            shutil.rmtree(machine.store, ignore_errors=True)

    return make, _nothing


def _store_restored(site: Site, machine: Machine) -> _Way:
    def make() -> None:
        with site.without_server(machine):
            site.did(f"an older store of {machine.member.domain} is restored")
            shutil.rmtree(machine.store, ignore_errors=True)
            shutil.copytree(site.copies[machine], machine.store)

    return make, _nothing


def _reload(site: Site) -> _Way:
    changes = (
        lambda text: text.replace('type = "http"', 'type = "http"\ntimeout = "29s"', 1),
        lambda text: text.replace('drain = "5s"', 'drain = "5s"\nwindow = 63', 1),
        lambda text: text.replace('max_bytes = "256MiB"', 'max_bytes = "250MiB"'),
        lambda text: f'{text}\n[[input]]\ntype = "file"\nname = "more"\npath = "/nowhere/*.ndjson"\n',
    )
    text = site.chance.choice(changes)(site.text)

    def make() -> None:
        site.did("the configuration of edge-1 is changed and reloaded")
        site.file.write_text(text)
        site.hup()

    def mend() -> None:
        site.file.write_text(site.text)
        site.hup()

    return make, mend


def _reload_refused(site: Site) -> _Way:
    wrong = (
        'colour = "red"\n' + site.text,
        f'{site.text}\n[[input]]\ntype = "http"\nname = "odd"\nlisten = "edge..plant:8080"\n',
        f'{site.text}\n[[input]]\ntype = "http"\nname = "http"\nlisten = "127.0.0.1:1"\n',
        "[[class",
    )
    text = site.chance.choice(wrong)

    def make() -> None:
        site.did(f"a file that can't be used is given to edge-1 and reloaded: {text.strip()[-40:]!r}")
        site.file_is_good = False
        site.file.write_text(text)
        site.hup()

    def mend() -> None:
        site.file.write_text(site.text)
        site.file_is_good = True
        site.hup()

    return make, mend


def _revoked(site: Site) -> _Way:
    leaf, hub = site.environment.leaf, site.environment.hub

    def make() -> None:
        site.did("the key of edge-1 is revoked")
        _run(hub, "fleet", "revoke", "edge-1")

    def mend() -> None:
        told = _run(leaf, "enrol", "--new")
        key = next(line.split('"')[1] for line in told.splitlines() if line.startswith("key"))
        _run(hub, "fleet", "replace", "edge-1", key)
        pid = leaf.agent.pid
        if pid is not None:
            if is_stopped(pid):
                os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not lives(pid) or leaf.agent.pid != pid, "the agent ends, to take its new key")

    return make, mend


def _run(machine: Machine, *words: str) -> str:
    command = [PETIOLE, *words, "-c", str(machine.member.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    assert done.returncode in (0, 5), f"{words}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout


def _nothing() -> None:
    """It mends itself."""


_WAYS: Final[dict[Fault, Callable[[Site], _Way]]] = {
    Fault.AGENT_KILLED: lambda site: _killed(site, site.environment.leaf.agent, [site.agent_unit]),
    Fault.AGENT_STOPPED: _agent_stopped,
    Fault.LEAF_SERVER_KILLED: lambda site: _killed(
        site, site.environment.leaf.nats, site.units_of(site.environment.leaf)
    ),
    Fault.HUB_SERVER_KILLED: lambda site: _killed(site, site.environment.hub.nats, []),
    Fault.HUB_AGENT_KILLED: lambda site: _killed(site, site.environment.hub.agent, [site.hub_unit]),
    Fault.LINK_CUT: lambda site: _link(site, "cut"),
    Fault.LINK_STALLED: lambda site: _link(site, "stall"),
    Fault.DISK_FULL: _disk_full,
    Fault.STREAM_FULL: _stream_full,
    Fault.LEAF_STORE_LOST: lambda site: _store_lost(site, site.environment.leaf),
    Fault.LEAF_STORE_RESTORED: lambda site: _store_restored(site, site.environment.leaf),
    Fault.HUB_STORE_LOST: lambda site: _store_lost(site, site.environment.hub),
    Fault.HUB_STORE_RESTORED: lambda site: _store_restored(site, site.environment.hub),
    Fault.RELOAD: _reload,
    Fault.RELOAD_REFUSED: _reload_refused,
    Fault.LEAF_REVOKED: _revoked,
}
