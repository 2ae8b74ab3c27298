"""A followed file, or what the agent knows of it, is older than what is stored."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.test_floods import all_stored
from tests.faults.matrix.test_processes import ended_and_back
from tests.faults.report import Case
from tests.faults.world.configs import LeafSettings
from tests.faults.world.environment import FaultEnvironment
from tests.faults.world.senders import FileDevice
from tests.harness.wait import wait_for

WHOLE = "every line is stored once"
_LINES = 400
_HOUR_NS = 3_600_000_000_000


class Followed:
    """A followed file and the programs that write it, one after the other."""

    def __init__(self, w: FaultEnvironment, path: Path) -> None:
        self._w, self.path, self._written, self._writers = w, path, 0, 0

    def written(self, lines: int = _LINES) -> None:
        """A program writes so many lines and ends, and all are stored."""
        w = self._w
        self._writers += 1
        series = w.load.series(w.leaf.member, f"logger-{self._writers}")
        one = FileDevice(self.path, *series, w.load.notes, size=20, pace=0.02)
        w.load.start(one)
        wait_for(lambda: one.sent.acknowledged >= lines, "the lines are written")
        one.end()
        one.join(60)
        self._written += one.sent.acknowledged
        all_stored(w, "file", self._written)
        w.mended()

    def judged(self) -> None:
        """Another program goes on, and every promise was kept."""
        self.written()
        self._w.load.flows()
        self._w.mended()
        self._w.verdict()


@contextmanager
def following(world_of: Worlds, tmp_path: Path) -> Iterator[tuple[FaultEnvironment, Followed]]:
    """A leaf that follows a file, of which all lines are stored."""
    path = tmp_path / "edge-1" / "lines.ndjson"
    more = f'[[input]]\ntype = "file"\npath = {json.dumps(str(path))}'
    with world_of(devices=1, leaf=LeafSettings(more=more)) as w:
        followed = Followed(w, path)
        followed.written()
        yield w, followed


def test_a_power_cut_takes_the_end_of_a_followed_file(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    """The program that writes it does not sync, and the agent does: the agent has stored more than the disk
    keeps."""
    case.expected = f"what is stored is not read again; {WHOLE}"
    with following(world_of, tmp_path) as (w, followed):
        w.leaf.agent.kill()
        content = followed.path.read_bytes()
        kept = content.rfind(b"\n", 0, len(content) - 6000) + 1
        os.truncate(followed.path, kept)
        os.truncate(followed.path, kept + 4096)
        gone = f"{len(content) - kept} bytes are gone, 4096 of them are zeros"
        w.injected.add("the end of the file is gone, a block of zeros in its place", lambda _since: gone)
        ended_and_back(w, w.leaf)
        followed.judged()


def test_the_state_directory_of_an_agent_is_restored(world_of: Worlds, case: Case, tmp_path: Path) -> None:
    """All but the store of the server, which is on another disk."""
    case.expected = f"the stream tells how far the file was read; {WHOLE}"
    with following(world_of, tmp_path) as (w, followed):
        state, copy = w.leaf.member.state, tmp_path / "copy"
        w.leaf.end_well()
        shutil.copytree(state, copy, ignore=shutil.ignore_patterns("nats"))
        w.leaf.start()
        followed.written()
        w.leaf.agent.kill()
        for entry in copy.iterdir():
            target = state / entry.name
            if entry.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(entry, target)
            else:
                shutil.copy2(entry, target)
        w.injected.add("an older state directory is restored", lambda _since: "its positions are older")
        ended_and_back(w, w.leaf)
        followed.judged()


def test_a_followed_file_is_rotated_when_the_clock_is_an_hour_behind(
    world_of: Worlds, case: Case, tmp_path: Path
) -> None:
    case.expected = f"no time of change orders the files; {WHOLE}"
    with following(world_of, tmp_path) as (w, followed):
        first, second = (followed.path.with_name(f"lines.ndjson.{number}") for number in (1, 2))
        for hours in (1, 2):
            if first.exists():
                first.rename(second)
            followed.path.rename(first)
            followed.path.touch()
            followed.written()
            back = time.time_ns() - hours * _HOUR_NS
            os.utime(followed.path, ns=(back, back))
            told = f"the file is {hours} h older than the rotated one"
            w.injected.add("the clock goes back, and the file is rotated", partial(_told, told))
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        followed.judged()


def _told(what: str, _since: float) -> str:
    return what
