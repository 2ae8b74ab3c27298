"""A leaf that was cut off for long: what waits there survives its agent and its server, and drains."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from agent.config.values import Size
from agent.contract import leaf_stream
from tests.faults.matrix.conftest import Worlds
from tests.faults.oracle.judge import Terms
from tests.faults.oracle.numbered import HEAVY, HEAVY_BYTES
from tests.faults.report import Case
from tests.faults.world.configs import HubSettings, LeafSettings
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.machine import Machine, Program
from tests.harness.wait import wait_for

READINGS = 200_000
BACKLOG = os.environ.get("BACKLOG") or "64MB"
"""Bytes on the disk of the leaf, such as 10GB."""
COPIES = 4.5
"""How often it stands on the disk of this machine: leaf, hub, bronze and readings, and what is under way."""
SLOWEST = 1_000_000
"""Bytes a second that a busy machine takes in, and drains."""
WHOLE = "nothing is lost or doubled"


def restarted(w: FaultEnvironment) -> None:
    """Agent and server are killed, and ready again."""
    w.leaf.agent.kill()
    w.leaf.nats.kill()
    began = time.monotonic()
    w.leaf.start()
    w.case.saw(f"the agent and its server were ready after {time.monotonic() - began:.1f} s")


def test_a_backlog_is_restarted_and_drained(world_of: Worlds, case: Case) -> None:
    case.expected = f"agent and server are killed over it, and it drains; {WHOLE}"
    with world_of(size=1000) as w:
        w.link.cut()
        wait_for(lambda: w.load.journal.acknowledged >= READINGS, f"{READINGS} readings are stored", 900)
        for one in w.load.devices:
            one.pace = 1.0
        restarted(w)
        w.link.restore()
        w.mended(300)
        w.verdict(Terms(seconds=300))


@pytest.mark.timeout(4 * 3600)
def test_a_backlog_of_many_bytes_is_restarted_and_drained(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"agent and server are killed over it, and it drains; {WHOLE}"
    size = Size.parse(BACKLOG)
    needed, free = int(size * COPIES), shutil.disk_usage(tmp_path).free
    if free < needed:
        pytest.skip(f"a backlog of {BACKLOG} needs {needed:,} bytes at {tmp_path}, {free:,} are free")
    if size < 10 * 10**9:
        case.not_proven.append(f"10 GB: this was {BACKLOG} (BACKLOG=)")
    seconds = 120 + size / SLOWEST
    room = 64 * 2**20 + int(size * 1.25)
    store = f"{room + 2**30}B"
    leaf = LeafSettings(cls=f'max_bytes = "{room}B"', max_file_store=store)
    hub = HubSettings(registrar=f'max_bytes = "{room}B"', max_file_store=store)
    with world_of(devices=1, leaf=leaf, hub=hub) as w:
        w.link.cut()
        for number in range(1, 4):
            name = f"{HEAVY}{number}"
            w.load.over_http(w.leaf.member, name, size=2**18 // HEAVY_BYTES, pace=0.0)
        wait_for(lambda: stored(w.leaf) >= size, f"{BACKLOG} are on the disk of the leaf", seconds)
        for one in w.load.devices:
            one.pace = 1.0
        case.saw(f"{w.load.journal.acknowledged:,} readings, {stored(w.leaf):,} bytes on the disk")
        restarted(w)
        case.saw(f"before it drains: {held(w)}")
        w.link.restore()
        w.mended(seconds)
        case.saw(f"drained after {case.recover_seconds} s: {held(w)}")
        w.verdict(Terms(seconds=seconds))


def stored(leaf: Machine) -> int:
    """Bytes of a leaf's messages on its disk."""
    blocks = leaf.blocks(leaf_stream(leaf.member.domain, "normal"))
    return sum(one.stat().st_size for one in blocks)


def held(w: FaultEnvironment) -> str:
    """The most memory that each process has held in this life."""
    programs = [one for machine in (w.leaf, w.hub) for one in (machine.agent, machine.nats)]
    return ", ".join(f"{one.name} {_peak(one):.0f} MiB" for one in programs)


def _peak(program: Program) -> float:
    lines = Path(f"/proc/{program.pid}/status").read_text().splitlines()
    return next(int(one.split()[1]) for one in lines if one.startswith("VmHWM:")) / 1024
