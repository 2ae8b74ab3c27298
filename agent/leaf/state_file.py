"""Stores the agent's state in files.

`state.json` is complete, `state.latest` has what changes per batch, and `positions.json` repeats pull
positions to survive the others' loss.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from agent.base.files import SlotFile, write_private
from agent.base.logs import LogEdge
from agent.base.machine import machine_id
from agent.base.wait import loop_time
from agent.contract import ContractError, check_epoch
from agent.leaf.state import VERSION, Acked, Positions, State

SAVE_SECONDS = 0.5
WHOLE_SECONDS = 60.0
"""Longest lag of the complete file."""
LATEST_NAME = "state.latest"
"""File of what changes per batch."""
POSITION_SECONDS = 10.0
"""Longest lag of the positions file; meanwhile the stream has them."""
POSITIONS_VERSION = 1
POSITIONS_NAME = "positions.json"

_KEPT = f"leave {POSITIONS_NAME} where it is: inputs of files go on from what it says"

log = structlog.get_logger("state")


class StateError(Exception):
    """The state file is unusable; the text has reason and remedy."""


class OtherDomainError(StateError):
    """The state file belongs to another domain."""


def load(path: Path, domain: str) -> State:
    """Load the state file or start a new one. A copied disk gets this machine's id.

    Raises `StateError` for damage, another version or domain, and `OSError`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        known = load_positions(path.with_name(POSITIONS_NAME), domain)
        return State(VERSION, machine_id(), domain, positions=known)
    try:
        version = msgspec.json.decode(data, type=dict).get("version")
        if version != VERSION:
            raise StateError(
                f"{path} is of version {version!r}, written by another release; this one reads {VERSION}: "
                f"install that release, or move the file away to start with an empty one; {_KEPT}"
            )
        state = msgspec.json.decode(data, type=State)
        for epoch in (*state.epochs.values(), *filter(None, [state.command_epoch])):
            check_epoch(epoch)
    except (msgspec.MsgspecError, UnicodeDecodeError, ContractError) as error:
        raise StateError(
            f"{path} is damaged ({error}); move it away to start with an empty one: what the hub holds "
            f"already is sent again and dropped at the table; {_KEPT}"
        ) from None
    if state.domain != domain:
        raise OtherDomainError(
            f"{path} is of domain {state.domain!r}, the configuration says {domain!r}; use another state_dir"
        )
    state.machine = machine_id(state.machine)
    _take_latest(state, SlotFile(path.with_name(LATEST_NAME)))
    return state


class _Latest(Struct):
    """What changes per batch, after the file `written` under this name."""

    written: str
    acked: dict[str, Acked]
    positions: Positions
    unplaced: list[str]


def _take_latest(state: State, file: SlotFile) -> None:
    """Apply later writes to a state. Raises `OSError`."""
    for record in file.read():
        try:
            latest = msgspec.json.decode(record, type=_Latest)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # of another release
        if latest.written == state.written:
            state.acked, state.positions, state.unplaced = latest.acked, latest.positions, latest.unplaced
            return


class _PositionsFile(Struct):
    version: int
    domain: str
    positions: Positions


def load_positions(path: Path, domain: str) -> Positions:
    """Load a domain's positions; an unreadable file is logged and empty, so its inputs do not start over by
    themselves.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_PositionsFile)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("cannot read the positions of inputs", path=str(path), error=str(error))
        return {}
    if (found.version, found.domain) != (POSITIONS_VERSION, domain):
        log.error("positions are of another version or domain", path=str(path), domain=found.domain)
        return {}
    return found.positions


class StateFile:
    """The state and its file. Marked changes are written together every `SAVE_SECONDS`, or at once by `save`.

    Changes per batch are noted and written in place to a small file.
    """

    def __init__(self, path: Path, state: State) -> None:
        self._path = path
        self._changed = asyncio.Event()
        self._whole = self._behind = False
        self._whole_at = float("-inf")
        self._latest = SlotFile(path.with_name(LATEST_NAME))
        self._writing = threading.Lock()
        self._asked = self._written = 0
        self._positions = b""
        self._positions_at = float("-inf")
        self._positions_asked = self._positions_written = 0
        self.current = state
        self.problem: str | None = None
        """Why it can't be written now."""

    def mark(self) -> None:
        """Mark a change."""
        self._whole = True
        self._changed.set()

    def note(self) -> None:
        """Mark a change of only `acked`, `positions` and `unplaced`."""
        self._changed.set()

    def note_checkpoint(self) -> None:
        """Mark a change of only a checkpoint, which may lag in the file."""
        self._behind = True
        self._changed.set()

    async def save(self) -> None:
        """Write the state; stays marked after `OSError`."""
        self._whole = self._behind = False
        try:
            await self._save_whole()
        except BaseException:
            self.mark()
            raise

    async def _refresh(self) -> None:
        """Write a lagging complete file; on a full disk at least the small one. Raises `OSError`."""
        self._behind = False
        try:
            await self._save_whole()
        except OSError:
            self._behind = True
            await self._save_latest()
            self._changed.set()
            raise

    async def _save_whole(self) -> None:
        self._changed.clear()
        self._asked += 1
        number, before = self._asked, self.current.written
        self.current.written = secrets.token_hex(8)
        try:
            await asyncio.to_thread(self._write, number, msgspec.json.encode(self.current))
        except OSError:
            if number == self._asked:
                self.current.written = before  # what is written next follows that one
            raise
        self._whole_at = loop_time()

    async def _save_latest(self) -> None:
        """Write noted changes, or the complete file if they do not fit. Raises `OSError`."""
        self._changed.clear()
        current = self.current
        latest = _Latest(current.written, current.acked, current.positions, current.unplaced)
        try:
            fits = await asyncio.to_thread(self._write_latest, msgspec.json.encode(latest))
        except BaseException:
            self._changed.set()
            raise
        if not fits:
            await self.save()

    async def save_positions(self) -> None:
        """Write changed positions to their file. Raises `OSError`."""
        current = self.current
        data = msgspec.json.encode(_PositionsFile(POSITIONS_VERSION, current.domain, current.positions))
        if data != self._positions and (self._positions or current.positions):
            self._positions_asked += 1
            await asyncio.to_thread(self._write_positions, self._positions_asked, data)
        self._positions_at = loop_time()

    def _write(self, number: int, data: bytes) -> None:
        # In a thread that goes on when the waiting task is cancelled: so writes may meet here, and an
        # older state must not follow a newer one.
        with self._writing:
            if number > self._written:
                write_private(self._path, data)
                self._written = number

    def _write_positions(self, number: int, data: bytes) -> None:
        # A trim saves them, too, also while `run` does.
        with self._writing:
            if number > self._positions_written:
                write_private(self._path.with_name(POSITIONS_NAME), data)
                self._positions, self._positions_written = data, number

    def _write_latest(self, data: bytes) -> bool:
        with self._writing:
            return self._latest.write(data)

    async def run(self) -> None:
        """Write marked changes until cancelled; logs an error once and retries."""
        failing = LogEdge(log.bind(path=str(self._path)), "the state file is written again", error=True)
        while True:
            await self._changed.wait()
            try:
                if self._whole:
                    await self.save()
                elif self._behind or loop_time() - self._whole_at >= WHOLE_SECONDS:
                    await self._refresh()
                else:
                    await self._save_latest()
                if loop_time() - self._positions_at >= POSITION_SECONDS:
                    await self.save_positions()
            except OSError as error:
                self.problem = str(error)
                failing.begin("the state file cannot be written", error=self.problem)
            else:
                self.problem = None
                failing.end()
            await asyncio.sleep(SAVE_SECONDS)
