"""There is no room: in a leaf's stream, in the hub's, or on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.leaf.link.status import LinkState
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import judged
from tests.faults.oracle.judge import Terms
from tests.faults.oracle.numbered import HEAVY, HEAVY_BYTES
from tests.faults.report import Case
from tests.faults.tools.disk import SmallDisk, missing, small_disk
from tests.faults.world.configs import HubSettings, LeafSettings
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.machine import Machine
from tests.harness.wait import wait_for

WHOLE = "nothing acknowledged is lost or doubled"
ROOM = 6 * 2**20
"""Bytes that are free on a full disk once a stream was trimmed."""
SMALL = 'max_bytes = "1MiB"'
needs_disk = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 32 MiB for a server's store."""
    with small_disk(tmp_path / "disk", 32) as one:
        yield one


def refused(w: FaultEnvironment, code: int) -> None:
    """Return when a device was refused with this code."""
    wait_for(lambda: any(one == code for _, one, _ in w.load.notes.refused), f"a device is answered {code}")


def full(w: FaultEnvironment, machine: Machine, disk: SmallDisk, sentence: str) -> None:
    """Nothing but a mebibyte is left of a disk; returns when its agent says so."""

    def told(_since: float) -> str | None:
        try:
            state = str(machine.status()["server"]["state"])
        except OSError:
            return None
        return state if sentence in state else None

    said: list[str] = []

    def trace(since: float) -> str | None:
        if not said and (found := told(since)):
            said.append(found)
        return said[0] if said else None

    w.injected.add(f"the disk of {machine.member.domain} is full", trace)
    disk.fill(but=2**20)
    w.noticed()
    w.case.detect_seconds = w.case.saw(said[0])


def test_the_stream_of_a_class_that_discards_nothing_is_full(world_of: Worlds, case: Case) -> None:
    case.expected = f"429 and the promise that nothing was stored; {WHOLE}"
    with world_of(leaf=LeafSettings(cls=SMALL), size=200) as w:
        w.link.cut()
        refused(w, 429)
        w.link.restore()
        judged(w)


def test_the_stream_of_a_class_that_discards_the_oldest_is_full(world_of: Worlds, case: Case) -> None:
    case.expected = "what was discarded before the hub had it is named; all else is there once"
    settings = LeafSettings(cls=f'{SMALL}\ndiscard = "old"')
    with world_of(leaf=settings, size=200) as w:
        w.link.cut()
        wait_for(lambda: w.leaf.metric("petiole_discarded_readings_total") > 2000, "readings are discarded")
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_the_stream_of_the_hub_is_full(world_of: Worlds, case: Case) -> None:
    case.expected = f"the leaf tells it and keeps what comes; it flows when ingest has run; {WHOLE}"
    with world_of(hub=HubSettings(registrar='max_bytes = "2MiB"\nkeep = 10'), size=100) as w:

        def told(since: float) -> str | None:
            found = [at for at, state in w.leaf.link_told(since) if state == LinkState.FULL]
            return f"the leaf reported it after {found[0] - since:.1f} s" if found else None

        w.injected.add("the stream of the hub has no room for what comes", told)
        w.noticed(300)
        for one in w.load.devices:
            one.pace = 1.0
        w.tables.ingest()
        w.injected.repaired("ingest has run")
        judged(w)


@needs_disk
def test_the_disk_of_a_leaf_is_full_and_freed(world_of: Worlds, case: Case, disk: SmallDisk) -> None:
    case.expected = f"503 with the reason while it is full; {WHOLE}"
    settings = LeafSettings(nats=f'store_dir = "{disk.path / "store"}"')
    with world_of(leaf=settings) as w:
        server = w.leaf.nats.pid
        full(w, w.leaf, disk, "of it are kept free")
        refused(w, 503)
        assert any("free some room" in text for _, code, text in w.load.notes.refused if code == 503)
        assert w.leaf.status_of("/readyz") == 503
        w.lasts(10)
        disk.free()
        w.injected.repaired("the disk is freed")
        judged(w, Terms(seconds=120))
        assert w.leaf.server() == server, "the server is not restarted for a disk that it can still write to"


@needs_disk
def test_others_fill_the_disk_of_a_leaf_whose_readings_the_hub_holds(
    world_of: Worlds, case: Case, disk: SmallDisk
) -> None:
    case.expected = f"the stream is trimmed though it is far from full, and readings are taken; {WHOLE}"
    settings = LeafSettings(nats=f'store_dir = "{disk.path / "store"}"')
    with world_of(leaf=settings) as w:
        w.load.over_http(w.leaf.member, f"{HEAVY}1", size=2**18 // HEAVY_BYTES, pace=0.0)
        wait_for(lambda: disk.room() < 16 * 2**20, "the stream holds 12 MiB or more")
        for device in w.load.devices:
            device.pace = 1.0
        w.mended()

        trimmed: list[int] = []

        def trace(_since: float) -> str | None:
            if not trimmed and disk.room() > ROOM:
                trimmed.append(disk.room())
            return f"{trimmed[0]} bytes were free again" if trimmed else None

        w.injected.add("others fill the disk of edge-1", trace)
        disk.fill(but=2**20)
        w.noticed()
        judged(w, Terms(seconds=120))


@needs_disk
def test_the_disk_of_the_hub_is_full_and_freed(world_of: Worlds, case: Case, disk: SmallDisk) -> None:
    case.expected = f"the leaf stores meanwhile; the hub's agent starts its server anew; {WHOLE}"
    settings = HubSettings(nats=f'store_dir = "{disk.path / "store"}"')
    with world_of(hub=settings, size=200) as w:
        full(w, w.hub, disk, "disk is full")
        w.load.flows(20)
        disk.free()
        w.injected.repaired("the disk is freed")
        judged(w, Terms(seconds=120))
