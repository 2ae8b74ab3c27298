"""Followed files whose disk, clock or agent is that of an earlier time: each line is stored once or named."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent import contract
from agent.config import StreamClass
from agent.contract import Doubt
from agent.leaf.inputs.file.positions import parse_kept
from tests.e2e.test_lost_positions import Tail, holds, trim
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.servers import ServerPair
from tests.harness.wait import until


@pytest.fixture
def tail(servers: ServerPair, tmp_path: Path) -> Tail:
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK, StreamClass())
    return Tail(config, tmp_path / "sensor.ndjson")


def shift(path: Path) -> None:
    """Rotate a file by renaming."""
    for number in range(9, 0, -1):
        old = path.with_name(f"{path.name}.{number}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{number + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))


async def doubts(one: Agent, probe: StreamProbe) -> tuple[Doubt, ...]:
    """The doubts in the newest ledger record."""
    await one.leaf._ledger_publisher._publish(probe.js, CLASS, final=False)
    subject = contract.ledger_subject(one.config.domain, CLASS)
    message = await probe.js.get_message(probe.stream, last_by_subject=subject)
    assert message is not None
    return contract.parse_ledger(message.data).doubts


@pytest.mark.parametrize("down", [False, True])
async def test_a_clock_that_is_set_back_by_an_hour_repeats_no_rotated_file(
    probe: StreamProbe, tail: Tail, down: bool
) -> None:
    ahead, lines = time.time() + 3600, tail.write(1)
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, lines)
        for number in range(4):
            lines += tail.write(3)
            os.utime(tail.path, (ahead + number, ahead + number))
            await holds(probe, lines)
            shift(tail.path)
        lines += tail.write(3)
        await holds(probe, lines)
        if down:
            await one.crash()
        lines += tail.write(1)
        os.utime(tail.path, (ahead - 3600, ahead - 3600))
        shift(tail.path)
        lines += tail.write(2)
        if not down:
            await holds(probe, lines)
            assert await doubts(one, probe) == ()
    if down:
        async with agent(tail.config, [tail.agent()]) as one:
            await holds(probe, lines)
            assert await doubts(one, probe) == ()


async def test_an_agent_whose_state_is_that_of_an_older_disk_names_what_it_reads_again(
    probe: StreamProbe, tail: Tail, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, tail.write(5))
        await one.stop()
    shutil.copytree(tail.config.state_dir, copy)
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, [f"line {number}" for number in range(5)] + tail.write(5))
        await trim(one, probe)
        await one.crash()
    shutil.rmtree(tail.config.state_dir)
    shutil.copytree(copy, tail.config.state_dir)
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, [f"line {number}" for number in range(5, 10)])
        (doubt,) = await doubts(one, probe)
        assert (doubt.kind, doubt.input, doubt.where) == ("twice", "tail", "all files")
        await one.stop()
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, [f"line {number}" for number in range(5, 10)] + tail.write(1))
        assert await doubts(one, probe) == (doubt,), "it is named once, and repeated by later runs"


def make_disk(image: Path) -> None:
    """Make a disk image with a file system."""
    with image.open("wb") as file:
        file.truncate(48 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)


def copy(image: Path, target: Path) -> None:
    subprocess.run(["cp", "--sparse=always", image, target], check=True)


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    """A disk image that is mounted."""
    folder.mkdir(exist_ok=True)
    made = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a disk image can't be mounted here: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def test_a_power_cut_that_takes_the_end_of_a_file_repeats_no_line(
    probe: StreamProbe, tail: Tail, tmp_path: Path
) -> None:
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk image can be made and mounted by root alone, with mkfs.ext4")
    disk, crashed, folder = tmp_path / "disk.img", tmp_path / "crashed.img", tmp_path / "disk"
    make_disk(disk)
    tail.path = folder / "sensor.ndjson"
    kept = tail.config.state_dir / "catalogues" / "tail.json"
    with mounted(disk, folder):
        async with agent(tail.config, [tail.agent()]) as one:
            lines = tail.write(100)
            with tail.path.open("rb") as file:
                os.fsync(file.fileno())
            await holds(probe, lines)
            lines += tail.write(400)  # by a writer that does not sync
            await holds(probe, lines)
            await one.crash()
        size = tail.path.stat().st_size
        copy(disk, crashed)  # what a power cut leaves
    with mounted(crashed, folder):
        data = tail.path.read_bytes()
        assert len(data.rstrip(b"\0")) < size, "the disk has not the end of the file"
        number = parse_kept(kept.read_text()).c
        async with agent(tail.config, [tail.agent()]) as one:
            await until(lambda: parse_kept(kept.read_text()).c > number, "the agent has seen it")
            lines += tail.write(20)
            await holds(probe, lines)
            assert not [doubt for doubt in await doubts(one, probe) if doubt.kind == "twice"]
