"""Packages that bring inputs, as pip would have installed them into a directory."""

from __future__ import annotations

from pathlib import Path

GOOD = """
import asyncio
import time
from agent.plugin import Chunk, ConfiguredInput, InputOptions, Seconds, event_within, split_valid, wall_ns
from msgspec import Struct

class Probe(Struct, forbid_unknown_fields=True):
    metric: str
    count: int = 1

class PingOptions(InputOptions, tag="ping", kw_only=True):
    name: str = "ping"
    interval: Seconds = Seconds(0.05)
    path: int = 3
    probes: list[Probe] = []

class PingInput(ConfiguredInput[PingOptions]):
    def _mistakes(self):
        if self._options.interval > 60:
            yield f"interval is {self._options.interval} s; take at most 1m"

    async def run(self, intake, stopping):
        while not stopping.is_set():
            parsed = split_valid(b'{"metric": "ping", "value": 1}', intake.domain, wall_ns())
            await intake.submit(self.name, self._options.class_, Chunk(parsed.payload, parsed.count))
            await event_within(stopping, self._options.interval)
"""

UNTIDY = f"""{GOOD}
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
"""
"""Raises `CancelledError` when it is to end, for a task of its own."""

ENDLESS = f"""{GOOD}
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
"""
"""Goes on when it is to end, and when it is cancelled."""


def installed(
    site: Path, code: str = GOOD, *, kind: str = "ping", package: str = "petiole-ping", target: str = ""
) -> Path:
    """A package of one module, and the directory that it is in. `target` is what its entry point names."""
    module = package.replace("-", "_")
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{module}.py").write_text(code)
    about = site / f"{module}-1.2.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[petiole.inputs]\n{kind} = {target or f'{module}:PingInput'}\n")
    return site
