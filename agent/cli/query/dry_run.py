"""Runs inputs and shows what they would send. Nothing is stored: no server is asked, no position is read or
written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from agent.base.text import harmless, shown
from agent.contract import Letter
from agent.leaf.intake import Chunk, Input, Intake, ResumePoint
from agent.leaf.publish.pull_chunks import Fragment

END_SECONDS: Final = 5.0
"""How long inputs may take to end."""


class Screen:
    """The core as an input sees it. It accepts everything at once; `show` gets NDJSON, `tell` a problem in
    words."""

    def __init__(self, domain: str, show: Callable[[bytes], None], tell: Callable[[str], None]) -> None:
        self.domain = domain
        self._show, self._tell = show, tell
        self.heard: set[str] = set()
        self.letters = 0
        self._shown = 0
        self.news = asyncio.Event()

    @property
    def stores_lost(self) -> int:
        """None is."""
        return 0

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Show a chunk."""
        self._show(harmless(chunk.payload))
        self._settle(chunk.on_settled)
        await self._heard(input_name, cls, chunk)

    async def submit_piece(self, input_name: str, cls: str, chunk: Chunk, parts: Sequence[Fragment]) -> None:
        """Show what the rules kept of a chunk."""
        for part in parts:
            self._show(harmless(part.payload))
            self._settle(part.on_settled)
        await self._heard(input_name, cls, chunk)

    def _settle(self, on_settled: Callable[[int | None], None] | None) -> None:
        self._shown += 1
        if on_settled is not None:
            on_settled(self._shown)

    async def stored_of(self, input_name: str, position: str) -> int | None:
        """Nothing is."""
        return 0

    async def _heard(self, input_name: str, cls: str, chunk: Chunk) -> None:
        await self.dead_letter(input_name, cls, chunk.letters)
        self.heard.add(input_name)
        self.news.set()

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Report unusable lines."""
        for letter in letters:
            self.letters += 1
            self._tell(f"input {input_name}: {shown(letter.at)}: {shown(letter.reason)}")

    async def position(self, input_name: str) -> ResumePoint:
        """Nothing of it is stored."""
        return ResumePoint()


async def run(
    inputs: Sequence[Input],
    screen: Screen,
    stopping: asyncio.Event,
    tell: Callable[[str], None],
    *,
    seconds: float,
    once: bool,
    intake: Intake | None = None,
) -> bool:
    """Run inputs with the screen, or an `intake` before it: for so long, or with `once` only until each has
    submitted something, or until `stopping` is set. False when one failed; `tell` gets the reason."""
    failed: list[str] = []

    async def guarded(input_: Input) -> None:
        try:
            await input_.run(intake or screen, stopping)
        except Exception as error:  # whatever it fails with is its own
            failed.append(input_.name)
            tell(f"input {input_.name}: {type(error).__name__}: {shown(str(error))}")
        finally:
            screen.heard.add(input_.name)
            screen.news.set()

    tasks = [asyncio.create_task(guarded(input_)) for input_ in inputs]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _enough(tasks, screen, stopping, once=once)
    stopping.set()
    _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    return not failed


async def _enough(
    tasks: Sequence[asyncio.Task[None]], screen: Screen, stopping: asyncio.Event, *, once: bool
) -> None:
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopping.is_set() and not all(task.done() for task in tasks):
            if once and len(screen.heard) >= len(tasks):
                return
            screen.news.clear()
            news = asyncio.create_task(screen.news.wait())
            try:
                await asyncio.wait({news, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
    finally:
        stopped.cancel()
