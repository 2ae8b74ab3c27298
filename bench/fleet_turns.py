"""`python -m bench.fleet_turns [LEAVES]`: the longest turns of the event loop of a hub's agent with so many
leaves (10,000), by the CPU time of its thread, and where each was: at its first start, at its start with all
leaves linked, and when a leaf more is let in. No benchmark: it says where to look.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from agent.base.wait import bounded_gather
from bench.fleet_hub import MACHINE, make_hub, make_key
from bench.fleet_leaves import Counted, SmallLeaf
from bench.fleet_setup import Fleet, announcing, seed
from bench.load import cpu_seconds
from bench.measured import load

_LEAVES: Final = 10_000
_SETTLE_SECONDS: Final = 30.0
_SHOWN: Final = 8


async def _run(leaves: int, directory: Path) -> None:
    turns = directory / "turns.jsonl"
    os.environ["TURNS"] = str(turns)
    keys = [make_key(number) for number in range(leaves + 1)]
    hub = make_hub(
        directory / "hub", [key for key, _ in keys[:leaves]], [public for _, public in keys[:leaves]]
    )
    counted = Counted()
    small = [SmallLeaf(key, MACHINE, counted) for key, _ in keys[:leaves]]
    try:
        began = time.time()
        await seed(hub, small, 0)
        _show("first starts", turns, began)
        await bounded_gather(lambda leaf: leaf.connect(hub.links), small)
        fleet = Fleet(hub, list(small), counted, 0)
        began = time.time()
        announcing(small)
        await fleet.all_answered(began)
        await asyncio.sleep(_SETTLE_SECONDS)
        _show("all announce for the first time", turns, began)
        hub.kill()
        began = hub.start()
        await hub.ready()
        await fleet.all_answered(began)
        used = cpu_seconds(hub.process)
        print(f"all known {time.time() - began:.1f} s after a start, {used:.1f} CPU-s")
        await asyncio.sleep(_SETTLE_SECONDS)
        _show("start with all linked", turns, began)
        began = time.time()
        with (directory / "hub" / "petiole.toml").open("a") as file:
            domain, public = keys[leaves][0].domain, keys[leaves][1]
            file.write(f'\n[[leaf]]\ndomain = "{domain}"\nkey = "{public}"\nclasses = ["normal"]\n')
        hub.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(_SETTLE_SECONDS)
        await fleet.all_answered(began)
        _show("one leaf more is let in", turns, began)
        print("load", load())
    finally:
        hub.end()


def _show(what: str, turns: Path, since: float) -> None:
    rows = [json.loads(line) for line in turns.read_text().splitlines()] if turns.exists() else []
    rows = sorted((row for row in rows if row["at"] >= since), key=lambda row: -row["ran"])
    print(f"== {what}: {len(rows)} turns of more than 20 ms of CPU")
    for row in rows[:_SHOWN]:
        ran, wall, after = 1e3 * row["ran"], 1e3 * row["wall"], row["at"] - since
        print(f"{ran:.0f} ms of CPU, {wall:.0f} ms, {after:.1f} s after")
        for stack in row["stacks"]:
            print(f"    {stack}")
    sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="petiole-turns-") as name:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(
            _run(int(sys.argv[1]) if len(sys.argv) > 1 else _LEAVES, Path(name))
        )
