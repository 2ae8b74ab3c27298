"""The program whose output the `file` input follows: appends numbered readings to a file."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

DEVICE = "file"
_STEPS_PER_SECOND = 10


async def write_lines(path: Path, rate: int, seconds: float) -> int:
    """Append about `rate` lines a second for `seconds`; returns how many. Their value counts from 1 without
    gaps."""
    loop = asyncio.get_running_loop()
    start, written = loop.time(), 0
    with path.open("a", encoding="ascii") as file:
        while (elapsed := loop.time() - start) < seconds:
            now = datetime.now(UTC).isoformat()
            while written < elapsed * rate:
                written += 1
                file.write(f'{{"ts":"{now}","device":"{DEVICE}","metric":"serial","value":{written}}}\n')
            file.flush()
            await asyncio.sleep(1 / _STEPS_PER_SECOND)
    return written
