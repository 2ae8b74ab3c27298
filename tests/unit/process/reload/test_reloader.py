"""A file that can't be judged changes nothing, whatever the judging fails with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from agent.config import Config, Log
from agent.leaf.intake import CheckedInput
from agent.process.reload import Applied, Reloader, ReloadError


class Files:
    """A file that is judged with an error until it is good."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.judged = threading.Event()

    def read(self) -> Config:
        return Config("edge-1", log=Log("debug"))

    def make(self, config: Config, names: Sequence[str]) -> list[CheckedInput]:
        return []

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        error = self.error
        self.judged.set()
        if error is not None:
            raise error
        return []


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/root/x"), UnicodeError("label empty"), KeyError("a")]
)
async def test_an_error_in_the_check_is_a_refusal_and_a_good_file_is_taken_afterwards(
    error: Exception,
) -> None:
    files = Files(error)
    reloader = Reloader(Config("edge-1"), files)
    with pytest.raises(ReloadError, match=type(error).__name__):
        reloader.plan()
    files.judged.clear()
    applied: asyncio.Queue[Applied] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reloader.run(applied.put, lambda: None))
        reloader.wanted()
        await asyncio.to_thread(files.judged.wait, 10)
        files.error = None
        reloader.wanted()
        assert (await applied.get()).config.log.level == "debug"
        running.cancel()
