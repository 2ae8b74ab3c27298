"""The yardstick of an agent that has little to do: a Python with the agent's libraries that takes the same
host metrics each second and does nothing with them.

`python -m bench.bare`; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import msgspec  # noqa: F401 - is there, as in the agent
import prometheus_client  # noqa: F401
import structlog  # noqa: F401
import uvloop
import zstandard  # noqa: F401

from agent.base.late_imports import load_late
from agent.leaf.inputs.host import GROUPS
from agent.leaf.inputs.host.psutil_metrics import Sampler


async def main() -> None:
    """Sample until the process ends."""
    sampler = Sampler(GROUPS)
    while True:
        sampler.sample()
        await asyncio.sleep(1.0)


if __name__ == "__main__":
    load_late("aiohttp", "multidict")  # as the agent does, or the yardstick would hold what it does not
    import nats  # noqa: F401

    threading.Thread(target=lambda: uvloop.run(main()), daemon=True).start()
    sys.stdin.read()
