"""Keeps texts of pull inputs beside their positions, and records doubts about lines in the ledger."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import structlog

from agent.base.files import private_directory, write_private
from agent.contract import Doubt
from agent.leaf.events import StoreLost
from agent.leaf.state_file import StateFile

FOLDER: Final = "catalogues"

log = structlog.get_logger("state")


class InputNotes:
    """The `Notes` of one agent: a file per input, and doubts in the state."""

    def __init__(self, state_dir: Path, state: StateFile) -> None:
        self._folder, self._state = state_dir / FOLDER, state

    def take_stale(self, input_name: str) -> bool:
        stale = self._state.current.stale
        if input_name not in stale:
            return False
        self._state.current.stale = [name for name in stale if name != input_name]
        return True

    def store_lost(self, lost: StoreLost) -> None:
        """Record inputs whose position was restored with the store; their newer lines may be at the hub
        already.
        """
        current = self._state.current
        for name in current.positions.get(lost.cls, {}) if lost.found_by_hub else ():
            reason = "were read since this start from a position of an older copy, which was restored"
            current.doubt(lost.cls, Doubt("twice", name, "all files", reason, time.time_ns()))
            log.warning("lines may be twice", input=name, file="all files", reason=reason)
            self._state.mark()

    async def kept(self, input_name: str) -> str | None:
        return await asyncio.to_thread(self._read, input_name)

    async def keep(self, input_name: str, text: str) -> None:
        await asyncio.to_thread(self._write, input_name, text)

    async def doubt(self, cls: str, doubt: Doubt) -> None:
        self._state.current.doubt(cls, doubt)
        try:
            await self._state.save()
        except OSError as error:  # it stays marked
            log.warning("doubt not on disk yet", error=str(error), input=doubt.input)

    def _read(self, input_name: str) -> str | None:
        try:
            return (self._folder / f"{input_name}.json").read_text()
        except FileNotFoundError:
            return None

    def _write(self, input_name: str, text: str) -> None:
        private_directory(self._folder)
        write_private(self._folder / f"{input_name}.json", text.encode())
