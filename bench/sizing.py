"""What a batch costs, by how many readings it holds: bytes of the leaf's stream, of the link, of the hub's
aggregate, and of the tables `bronze` and `readings`. docs/capacity.md reckons with these.

The readings are those of `bench.lake`: 500 series of 50 devices, three tags, a value between 0 and 100 of
three digits behind the point that is drawn at random, which compresses worse than what most machines measure;
the readings of a batch have one time. The link is that of `wire`, both ways, without TCP's own bytes. Ledger
records and acknowledgements that fall into the time are counted with the batches. Tables are counted in files
of 2,000 batches, as a pass of the jobs writes them that finds so many.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.contract import DEFAULT_CLASS, aggregate, leaf_stream
from agent.jetstream import JetStream
from bench.lake import Shape, lines, make
from bench.result import Result, Row
from bench.wire import DOMAIN, Link, open_link, posted
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import file_paths

_BATCHES = {1: 200, 10: 200, 100: 200, 500: 200}
"""How many batches of so many readings are posted."""
_LAKE_BATCHES = {1: 40_000, 10: 40_000, 100: 8_000, 500: 2_000}
"""How many of them go into a lake."""
_BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


def run() -> Result:
    return Result("sizing", [*asyncio.run(_on_the_way()), *_in_the_lake()])


async def _on_the_way() -> list[Row]:
    """Rows of the leaf's stream, the link and the aggregate."""
    rows = []
    async with open_link((DEFAULT_CLASS,)) as link:
        for readings, batches in _BATCHES.items():
            requests = [
                [line.decode().rstrip() for line in lines(_BEGAN + timedelta(seconds=at), at, readings)]
                for at in range(batches)
            ]
            leaf, hub = await _held(link)
            passed = await posted(link, requests)
            leaf_after, hub_after = await _held(link)
            rows += [
                _row("the leaf's stream", readings, (leaf_after - leaf) / batches),
                _row("the link", readings, passed / batches),
                _row("the hub's aggregate", readings, (hub_after - hub) / batches),
            ]
    return rows


async def _held(link: Link) -> tuple[int, int]:
    """Bytes of the leaf's stream and of the aggregate."""
    at_leaf = await JetStream(link.leaf).stream_info(leaf_stream(DOMAIN, DEFAULT_CLASS))
    at_hub = await JetStream(link.hub).stream_info(aggregate(0))
    return at_leaf.bytes, at_hub.bytes


def _in_the_lake() -> list[Row]:
    rows = []
    for readings, batches in _LAKE_BATCHES.items():
        with tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory:
            lake = Path(directory)
            make(lake, Shape(readings * batches, readings), processes=1)
            for name in ("bronze", "readings"):
                paths = file_paths(ensure_table(lake, name))
                size = sum((lake / name / path.name).stat().st_size for path in paths)
                rows.append(_row(f"table {name}", readings, size / batches))
    return rows


def _row(where: str, readings: int, value: float) -> Row:
    return Row(f"{where}, readings a batch: {readings}", value, "bytes/batch", least=True)
