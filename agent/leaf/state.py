"""The state file: what an agent must remember on its own, since its stream may be lost or restored from a
backup."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from agent.base.files import write_private
from agent.base.log_edges import LogEdge
from agent.base.machine_id import machine_id
from agent.base.wait import loop_time
from agent.contract import (
    LOST_STREAMS,
    Checkpoint,
    CommandKey,
    ContractError,
    Correction,
    LostStream,
    Previous,
    Readings,
    check_epoch,
)
from agent.leaf.commands.cursor import RecentCommands
from agent.leaf.timeline import Timeline

POSITIONS_VERSION = 1

POSITIONS_NAME = "positions.json"

VERSION = 1
SAVE_SECONDS = 0.5
POSITION_SECONDS = 10.0
"""How long the file of positions may stay behind: until then the stream has them, unless it discards."""

_KEPT = f"leave {POSITIONS_NAME} where it is: inputs of files go on from what it says"

log = structlog.get_logger("state")


class StateError(Exception):
    """The state file cannot be used; the text says why and what to do."""


class OtherDomainError(StateError):
    """The state file is of another domain than the configuration."""


class Acked(Struct, frozen=True):
    """The last PubAck of a class: run and number of the batch, its sequence in the stream made at `created`,
    and the run's cumulative readings. `closed` says that a final ledger record was stored. `top` is the last
    sequence that the stream was seen to hold, with what devices publish there themselves, and `top_time` when
    that message was stored, as its server wrote it. Nothing of all that was stored after `at`, in nanoseconds
    since 1970; 0 where that is not known."""

    run: str
    n: int
    seq: int
    created: str
    readings: Readings
    closed: bool = False
    top: int = 0
    top_time: str = ""
    at: int = 0

    @property
    def last(self) -> int:
        """The last sequence that the stream is known to have held."""
        return max(self.seq, self.top)

    def previous(self) -> Previous:
        """The same, as a ledger record of the next run states it."""
        return Previous(self.run, self.n, self.readings, self.closed)


class PullPosition(Struct, frozen=True):
    """Where a pull input goes on after its last stored batch, which is at `seq`. The stream has it more
    exactly as long as it holds that batch, but may have trimmed it."""

    text: str
    seq: int


Positions = dict[str, dict[str, PullPosition]]
"""By class and input."""


class Checkpoints(Struct, frozen=True):
    """Checkpoints (`agent.leaf.link.checkpoints`) in one stream of the hub whose message ids begin alike, as
    those of one run do: the number of each, its leaf sequence, the end of its id and its hub sequence."""

    ids: str
    stream: str
    rows: list[tuple[int, int, str, int]]


class Setting(Struct, frozen=True):
    """A value that holds instead of the configured one, from `since` to `until` (epoch seconds). Within the
    boot in which it was set `deadline` says so (seconds of `CLOCK_BOOTTIME`), whatever becomes of the
    clock."""

    value: str | float | bool
    since: float
    until: float
    boot: str
    deadline: float


class State(Struct):
    """The whole file. `epochs`, `acked`, `previous` and `checkpoint` are by class, `positions` by class and
    input; `unplaced` are the inputs whose position may have been lost, with the state file before this one;
    `command` is the place of the last command begun (`agent.leaf.commands.cursor`), `commands_run` are the
    last ones run, `command_epoch` the epoch of the commands' mirror and `command_agreed` the newest command
    in it that the hub was found to hold, `settings` what commands have set for a time, by name; `clock` what
    the machine's clock has been through, `corrections` what of it the streams do not hold yet; `lost` by
    class the streams whose store was lost or restored, `earlier` the checkpoints before the newest."""

    version: int
    machine: str
    domain: str
    epochs: dict[str, str] = {}
    acked: dict[str, Acked] = {}
    previous: dict[str, Acked] = {}
    checkpoint: dict[str, Checkpoint] = {}
    positions: dict[str, dict[str, PullPosition]] = {}
    unplaced: list[str] = []
    command: str | None = None
    commands_run: RecentCommands = msgspec.field(default_factory=RecentCommands)
    command_epoch: str | None = None
    command_agreed: CommandKey | None = None
    settings: dict[str, Setting] = {}
    clock: Timeline | None = None
    corrections: list[Correction] = []
    lost: dict[str, list[LostStream]] = {}
    earlier: dict[str, list[Checkpoints]] = {}

    def place(self, input_name: str, cls: str, position: PullPosition) -> None:
        """An input goes on from here."""
        self.positions.setdefault(cls, {})[input_name] = position
        if input_name in self.unplaced:
            self.unplaced.remove(input_name)

    def lose(self, cls: str, acked: Acked, kept: int | None = None) -> None:
        """The stream of this last PubAck is no more, or holds only what it had `kept` of it: what devices
        published there themselves, and the hub does not have, can be named by its sequences only."""
        known = self.lost.setdefault(cls, [])
        known.append(LostStream(acked.created, acked.last, kept, acked.at))
        del known[:-LOST_STREAMS]

    def learn(self, cls: str, recorded: Sequence[LostStream]) -> None:
        """Take in what a ledger record says of lost streams."""
        known = self.lost.get(cls, [])
        self.lost[cls] = [*(one for one in known if one not in recorded), *recorded][-LOST_STREAMS:]


def load(path: Path, domain: str) -> State:
    """Read the state file, or start a new one where there is none. One that came with a copied disk gets the
    id of this machine. Raises `StateError` for one that is damaged, of another version or of another domain,
    and `OSError`."""
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
    return state


class StateFile:
    """The state in memory and its file. Changes are marked and written together, at most every
    `SAVE_SECONDS`; what must be on disk before going on is saved at once."""

    def __init__(self, path: Path, state: State) -> None:
        self._path = path
        self._changed = asyncio.Event()
        self._writing = threading.Lock()
        self._asked = self._written = 0
        self._positions = b""
        self._positions_at = float("-inf")
        self.current = state

    def mark(self) -> None:
        """The state has changed."""
        self._changed.set()

    async def save(self) -> None:
        """Write the state as it is now; when that fails it stays marked. Raises `OSError`."""
        self._changed.clear()
        self._asked += 1
        try:
            await asyncio.to_thread(self._write, self._asked, msgspec.json.encode(self.current))
        except BaseException:
            self._changed.set()
            raise

    async def save_positions(self) -> None:
        """Write the positions of inputs into their own file, where that does not have them. Raises
        `OSError`."""
        data = encode_positions(self.current.domain, self.current.positions)
        if data != self._positions and (self._positions or self.current.positions):
            await asyncio.to_thread(write_private, self._path.with_name(POSITIONS_NAME), data)
            self._positions = data
        self._positions_at = loop_time()

    def _write(self, number: int, data: bytes) -> None:
        # In a thread that goes on when the waiting task is cancelled: so writes may meet here, and an
        # older state must not follow a newer one.
        with self._writing:
            if number > self._written:
                write_private(self._path, data)
                self._written = number

    async def run(self) -> None:
        """Write marked changes until cancelled; a write error is logged once and retried."""
        failing = LogEdge(log.bind(path=str(self._path)), "the state file is written again", error=True)
        while True:
            await self._changed.wait()
            try:
                await self.save()
                if loop_time() - self._positions_at >= POSITION_SECONDS:
                    await self.save_positions()
            except OSError as error:
                failing.begin("the state file cannot be written", error=str(error))
            else:
                failing.end()
            await asyncio.sleep(SAVE_SECONDS)


class _PositionsFile(Struct):
    version: int
    domain: str
    positions: Positions


def encode_positions(domain: str, positions: Mapping[str, Mapping[str, PullPosition]]) -> bytes:
    """The file as it is written."""
    return msgspec.json.encode({"version": POSITIONS_VERSION, "domain": domain, "positions": positions})


def load_positions(path: Path, domain: str) -> Positions:
    """The positions of a domain; none where there is no file of its. One that cannot be read is logged and
    counts as none: inputs whose position is lost do not begin by themselves."""
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
