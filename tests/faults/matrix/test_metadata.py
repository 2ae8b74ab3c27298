"""A power cut or a failing disk damages the metadata of a stream, and its server passes the stream over. What
creates it again finds all messages in it, under another time of creation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import in_table, judged
from tests.faults.matrix.test_stores import NAMED, UNSEEN, WHOLE, copied, replaced
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment, stream_of
from tests.faults.world.machine import Machine

Damage = Callable[[Path], None]
"""Damages the metadata in the directory of a stream or consumer."""


def emptied(directory: Path) -> None:
    (directory / "meta.inf").write_bytes(b"")


def zeroed(directory: Path) -> None:
    file = directory / "meta.inf"
    file.write_bytes(bytes(file.stat().st_size))


def without_sum(directory: Path) -> None:
    (directory / "meta.sum").unlink()


def cut_short(directory: Path) -> None:
    file = directory / "meta.inf"
    file.write_bytes(file.read_bytes()[:64])


def passed_over(w: FaultEnvironment, machine: Machine, damage: Damage, streams: str) -> None:
    """The metadata of these streams are damaged while their server is down."""
    with machine.without_server():
        damaged(w, machine, damage, streams)


def damaged(w: FaultEnvironment, machine: Machine, damage: Damage, streams: str) -> None:
    """The metadata of these streams are damaged."""
    found = sorted(machine.store.glob(f"jetstream/PETIOLE/streams/{streams}"))
    assert found
    log = machine.store.with_name("nats-server.log")
    names = ", ".join(path.name for path in found)
    what = f"metadata of {machine.member.domain} are damaged ({damage.__name__}): {names}"
    w.injected.add(what, partial(_told, log, log.stat().st_size))
    for directory in found:
        damage(directory)


def _told(log: Path, begin: int, _since: float) -> str | None:
    words = ("checksums do not match", "Missing stream checksum file")
    lines = log.read_text()[begin:].splitlines()
    return next((line for line in lines if any(each in line for each in words)), None)


@pytest.mark.parametrize("damage", [emptied, zeroed, without_sum, cut_short])
def test_the_metadata_of_a_leafs_stream_are_damaged(world_of: Worlds, case: Case, damage: Damage) -> None:
    case.expected = f"its messages are known again; {WHOLE}"
    with world_of(devices=1) as w:
        in_table(w)
        passed_over(w, w.leaf, damage, stream_of(w.leaf))
        judged(w)


def test_the_metadata_of_all_streams_of_a_leaf_are_damaged_when_the_link_is_down(
    world_of: Worlds, case: Case
) -> None:
    case.expected = f"its messages are known again; {WHOLE}"
    with world_of(devices=1) as w:
        in_table(w)
        w.link.cut()
        w.load.flows(20)
        passed_over(w, w.leaf, emptied, "*")
        w.load.flows(20)
        w.link.restore()
        judged(w)


def test_the_metadata_of_a_leafs_stream_are_damaged_twice_before_a_job_runs(
    world_of: Worlds, case: Case
) -> None:
    case.expected = f"its messages are known again; {WHOLE}"
    with world_of(devices=1) as w:
        for _ in range(2):
            w.mended()
            w.load.flows(20)
            passed_over(w, w.leaf, emptied, stream_of(w.leaf))
            w.noticed()
        judged(w)


def test_the_metadata_of_a_leafs_stream_and_its_state_are_lost(world_of: Worlds, case: Case) -> None:
    case.expected = f"its messages are known again by their ledger; {WHOLE}"
    with world_of(devices=1) as w:
        in_table(w)
        w.leaf.agent.kill()
        w.leaf.nats.kill()
        damaged(w, w.leaf, emptied, stream_of(w.leaf))
        for slot in w.leaf.member.state.glob("state*"):
            slot.unlink()
        w.leaf.start()
        judged(w)


def test_an_older_store_of_a_leaf_is_restored_with_damaged_metadata(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"a new epoch; {NAMED}{UNSEEN}"
    with world_of(devices=1) as w:
        in_table(w)
        copied(w, w.leaf, tmp_path / "copy")
        w.link.cut()
        w.load.flows(20)
        for directory in (tmp_path / "copy").glob(f"jetstream/PETIOLE/streams/{stream_of(w.leaf)}"):
            emptied(directory)
        replaced(w, w.leaf, tmp_path / "copy")
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


@pytest.mark.parametrize("streams", ["TELEMETRY_0", "COMMANDS", "KV_*", "*"])
def test_the_metadata_of_streams_of_the_hub_are_damaged(world_of: Worlds, case: Case, streams: str) -> None:
    case.expected = WHOLE
    with world_of(devices=1) as w:
        in_table(w)
        passed_over(w, w.hub, emptied, streams)
        judged(w)
