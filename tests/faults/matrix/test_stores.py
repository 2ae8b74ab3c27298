"""A store is lost, restored, cut off or damaged, on either side."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

from agent.contract import aggregate
from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.scenarios import in_table, judged, little_came_again
from tests.faults.oracle.again import SECONDS
from tests.faults.oracle.judge import Terms
from tests.faults.report import Case
from tests.faults.world.environment import FaultEnvironment, stream_of
from tests.faults.world.injected_faults import Trace
from tests.faults.world.machine import Machine
from tests.harness.wait import wait_for

WHOLE = "nothing acknowledged is lost or doubled"
NAMED = "what was only in that store is gone and named by the audit; all else is there once"
UNSEEN = "; what devices published there after the agent's last look nobody can name"


def wiped(w: FaultEnvironment, machine: Machine) -> None:
    """No store at all, after a crash."""
    with machine.without_server():
        w.injected.add(f"the store of {machine.member.domain} is wiped", partial(_begun_anew, w))
        shutil.rmtree(machine.store)


def _begun_anew(w: FaultEnvironment, since: float) -> str | None:
    """A new epoch, or a stream of the hub that is empty: before anything was agreed no epoch is needed."""
    empty = [line for _, line in w.hub.said(since, event="ready") if line.get("last") == 0]
    return w.leaf.new_epoch(since) or ("the stream of the hub is empty" if empty else None)


def restore_copy(w: FaultEnvironment, machine: Machine, copy: Path) -> None:
    """An older copy in place of the store, after a crash."""
    copied(w, machine, copy)
    held = [(leaf, w.last(leaf)) for leaf in w.leaves]
    w.load.flows(20)
    w.mended()
    # What is not confirmed yet the hub's server fetches again unasked, without a new epoch.
    for leaf, last in held:
        wait_for(partial(_confirms_more, leaf, last), "the hub's disk has more than the copy")
    replaced(w, machine, copy)


def _confirms_more(leaf: Machine, seq: int) -> bool:
    return int(leaf.status()["classes"]["normal"]["confirmed"]) > seq


def copied(w: FaultEnvironment, machine: Machine, copy: Path) -> None:
    """The store as it is when much more has come than may come again, and on goes the machine."""
    w.lasts(2 * SECONDS)
    with machine.without_server():
        shutil.copytree(machine.store, copy)
    w.mended()


def replaced(w: FaultEnvironment, machine: Machine, copy: Path) -> None:
    """The copy in place of the store."""
    with machine.without_server():
        w.injected.add(f"an older store of {machine.member.domain} is restored", w.leaf.new_epoch)
        shutil.rmtree(machine.store)
        copy.rename(machine.store)


def truncated(w: FaultEnvironment, machine: Machine) -> None:
    """The newest half of the last block is gone."""
    held = w.last(machine)
    with machine.without_server():
        block = machine.blocks(stream_of(machine))[-1]
        size = block.stat().st_size
        what = f"{size - size // 2} bytes are cut off a block of {machine.member.domain}"
        w.injected.add(what, fewer(machine, held))
        os.truncate(block, size // 2)
        block.with_name("index.db").unlink(missing_ok=True)


def corrupted(w: FaultEnvironment, machine: Machine) -> None:
    """Some bytes in the middle of a block are others."""
    held = w.last(machine)
    with machine.without_server():
        block = machine.blocks(stream_of(machine))[0]
        what = f"64 bytes of a block of {machine.member.domain} are damaged"
        w.injected.add(what, fewer(machine, held))
        damage(block)


def damage(block: Path) -> None:
    """Some bytes in the middle of a block are others, and its server reads it at its start."""
    with block.open("r+b") as file:
        file.seek(block.stat().st_size // 2)
        there = file.read(64)
        file.seek(-len(there), os.SEEK_CUR)
        file.write(bytes(one ^ 0xFF for one in there))
    block.with_name("index.db").unlink(missing_ok=True)


def fewer(machine: Machine, held: int) -> Trace:
    """The next server finds less on its disk than the one before it held, at the least."""
    log = machine.store.with_name("nats-server.log")
    begin = log.stat().st_size
    stream = re.escape(stream_of(machine))

    def trace(_since: float) -> str | None:
        told = re.search(rf"Restored (\d+) messages for stream '[^']* {stream}'", log.read_text()[begin:])
        less = told is not None and int(told[1]) < held
        return f"its server found {told[1]} of {held} messages or more" if told and less else None

    return trace


def test_the_store_of_a_leaf_is_wiped_when_the_hub_holds_all(world_of: Worlds, case: Case) -> None:
    case.expected = f"a new epoch; {NAMED}"
    with world_of() as w:
        in_table(w)
        w.mended()
        wiped(w, w.leaf)
        judged(w, Terms(gone=True))


def test_the_store_of_a_leaf_is_wiped_when_the_link_is_down(world_of: Worlds, case: Case) -> None:
    case.expected = f"a new epoch; {NAMED}"
    with world_of(direct=False) as w:
        in_table(w)
        w.link.cut()
        w.load.flows(20)
        wiped(w, w.leaf)
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_the_store_of_a_leaf_is_wiped_with_messages_that_devices_published_there(
    world_of: Worlds, case: Case
) -> None:
    case.expected = f"a new epoch; {NAMED}{UNSEEN}"
    with world_of(devices=1) as w:
        in_table(w)
        w.link.cut()
        w.load.flows(20)
        wiped(w, w.leaf)
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_the_store_of_a_leaf_is_restored(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"a new epoch; {NAMED}"
    with world_of() as w:
        restore_copy(w, w.leaf, tmp_path / "copy")
        judged(w, Terms(gone=True))
        little_came_again(w)


def test_the_store_of_a_leaf_is_restored_when_the_link_is_down(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"a new epoch; {NAMED}{UNSEEN}"
    with world_of() as w:
        in_table(w)
        copied(w, w.leaf, tmp_path / "copy")
        w.link.cut()
        w.load.flows(20)
        replaced(w, w.leaf, tmp_path / "copy")
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named
        little_came_again(w)


def test_one_copy_of_the_store_of_a_leaf_is_restored_twice(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"a new epoch each time; {NAMED}, for each of both{UNSEEN}"
    with world_of(devices=1) as w:
        in_table(w)
        copied(w, w.leaf, tmp_path / "copy")
        shutil.copytree(tmp_path / "copy", tmp_path / "again")
        w.link.cut()
        for copy in ("copy", "again"):
            w.load.flows(20)
            replaced(w, w.leaf, tmp_path / copy)
            w.noticed()
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        little_came_again(w)
        assert sum("the store that held them was seen last at" in one for one in case.seen) == 2


def test_a_block_of_a_leaf_is_cut_off_when_the_link_is_down(world_of: Worlds, case: Case) -> None:
    case.expected = NAMED
    with world_of(direct=False) as w:
        w.link.cut()
        w.load.flows(20)
        truncated(w, w.leaf)
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_a_block_of_a_leaf_is_damaged_when_the_link_is_down(world_of: Worlds, case: Case) -> None:
    case.expected = NAMED
    with world_of(direct=False) as w:
        w.link.cut()
        w.load.flows(20)
        corrupted(w, w.leaf)
        w.load.flows()
        w.link.restore()
        judged(w, Terms(gone=True))
        assert case.named


def test_the_store_of_the_hub_is_wiped(world_of: Worlds, case: Case) -> None:
    case.expected = f"a new epoch fills it again from the leaf; {WHOLE}"
    with world_of() as w:
        in_table(w)
        wiped(w, w.hub)
        judged(w)


def test_the_store_of_the_hub_is_wiped_before_any_job_has_run(world_of: Worlds, case: Case) -> None:
    case.expected = f"a new epoch fills it again from the leaf; {WHOLE}"
    with world_of() as w:
        w.mended()
        wait_for(lambda: bool(w.leaf.status()["classes"]["normal"]["confirmed"]), "the hub confirms")
        w.load.flows(20)
        wiped(w, w.hub)
        judged(w)


def test_the_store_of_the_hub_is_restored(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    case.expected = f"a new epoch sends what it lacks; {WHOLE}"
    with world_of() as w:
        restore_copy(w, w.hub, tmp_path / "copy")
        judged(w)
        little_came_again(w)


def test_a_block_of_the_hub_is_cut_off(world_of: Worlds, case: Case) -> None:
    case.expected = f"what it lacks is sent again; {WHOLE}"
    with world_of() as w:
        truncated(w, w.hub)
        judged(w)


def test_a_block_of_the_hub_is_damaged(world_of: Worlds, case: Case) -> None:
    case.expected = f"its server goes on before the damage, and what it lacks is sent again; {WHOLE}"
    case.not_proven.append("a block that others follow: what it held is named, and not sent again by itself")
    with world_of(direct=False) as w:
        corrupted(w, w.hub)
        judged(w)


def test_the_aggregate_is_deleted(world_of: Worlds, case: Case) -> None:
    case.expected = f"it is made anew and filled from what the leaf holds; {WHOLE}"
    with world_of() as w:
        in_table(w)
        with w.hub.without_server():
            w.injected.add("the aggregate's files are deleted", w.leaf.new_epoch)
            shutil.rmtree(w.hub.blocks(aggregate(0))[0].parents[1])
        judged(w)
