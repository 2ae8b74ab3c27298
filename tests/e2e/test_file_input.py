"""A program that tails files is killed while they grow, are rotated and renamed: each line is stored once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.harness.wait import until

TAILER = """
import asyncio, json, os, pathlib, sys
from agent.config import Seconds
from agent.leaf.inputs.file.input import FileInput, FileOptions
from agent.leaf.intake import ResumePoint
from agent.base.metrics import Metrics

class Store:
    "Keeps payload and position of each chunk in a file of its own, there whole or not at all."
    domain = "edge-1"

    def __init__(self, folder):
        self.folder = folder
        self.count = len(list(folder.glob("*.json")))

    async def submit(self, name, cls, chunk):
        text = json.dumps([chunk.payload.decode(), chunk.position])
        await asyncio.sleep(0.002)
        part = self.folder / "part"
        part.write_text(text)
        part.rename(self.folder / f"{self.count:06d}.json")
        await asyncio.sleep(0.002)
        self.count += 1

    async def position(self, name):
        if not self.count:
            return ResumePoint()
        return ResumePoint(json.loads((self.folder / f"{self.count - 1:06d}.json").read_text())[1])

async def main():
    options = FileOptions(name="tail", path=sys.argv[1], poll=Seconds(0.01))
    await FileInput(options, Metrics()).run(Store(pathlib.Path(sys.argv[2])), asyncio.Event())

asyncio.run(main())
"""
ROUNDS = 3
LINES = 600


class Tailer:
    """The program under test, started and killed."""

    def __init__(self, path: Path, store: Path) -> None:
        self._command = [sys.executable, "-c", TAILER, str(path), str(store)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Writer:
    """Writes numbered lines to one file, in whole and in halves, rotates it, or begins another one."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.device = device
        self.path = folder / f"{device}.ndjson"
        self.count = 0
        self.moved = 0

    def write(self, lines: int) -> None:
        with self.path.open("a") as file:
            for number in range(self.count, self.count + lines):
                padding = "x" * (number % 80)
                line = (
                    f'{{"device":"{self.device}","metric":"n","value":{number},"tags":{{"p":"{padding}"}}}}\n'
                )
                file.write(line[:9])
                if number % 500 == 0:
                    file.flush()
                file.write(line[9:])
        self.count += lines

    def rename(self) -> None:
        self._shift()
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))

    def copy_and_truncate(self) -> None:
        self._shift()
        shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
        os.truncate(self.path, 0)

    def move(self) -> None:
        """Give the file another name that is followed as well."""
        self.moved += 1
        self.path.rename(self.folder / f"{self.device}_moved_{self.moved}.ndjson")

    def _shift(self) -> None:
        for number in range(50, 0, -1):
            old = self.path.with_name(f"{self.path.name}.{number}")
            if old.exists():
                old.rename(self.path.with_name(f"{self.path.name}.{number + 1}"))


def stored(store: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for one in sorted(store.glob("*.json")):
        for line in json.loads(one.read_text())[0].splitlines():
            row = json.loads(line)
            found.setdefault(row["device"], []).append(row["value"])
    return found


def count(store: Path) -> int:
    return sum(map(len, stored(store).values()))


def more_than(chunks: int, store: Path) -> bool:
    return len(list(store.iterdir())) > chunks


async def test_a_killed_tailer_neither_loses_nor_repeats_a_line(tmp_path: Path) -> None:
    chance = random.Random(20_251_121)
    store = tmp_path / "store"
    store.mkdir()
    writers = [Writer(tmp_path, device) for device in ("a", "b", "c")]
    tailer = Tailer(tmp_path / "*.ndjson", store)
    for writer in writers:
        writer.write(1)
    try:
        for _ in range(ROUNDS):
            chunks = len(list(store.iterdir()))
            tailer.start()
            await until(partial(more_than, chunks, store), "something is stored")
            for writer in writers:
                writer.write(LINES)
                await asyncio.sleep(chance.uniform(0.0, 0.05))
                if chance.random() < 0.5:
                    chance.choice([writer.rename, writer.copy_and_truncate])()
                    writer.write(LINES)
            tailer.kill()
            for writer in writers:
                if chance.random() < 0.6:
                    chance.choice([writer.rename, writer.copy_and_truncate, writer.move])()
                writer.write(LINES)
        tailer.start()
        await until(lambda: count(store) >= sum(one.count for one in writers), "all is stored")
    finally:
        tailer.kill()
    assert {device: sorted(values) for device, values in stored(store).items()} == {
        writer.device: list(range(writer.count)) for writer in writers
    }
