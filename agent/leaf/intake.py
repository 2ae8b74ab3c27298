"""What an input hands to the core, and what the core may answer. Inputs know this module and nothing else of
the way of a reading; the core knows no input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from agent.contract import Doubt, Letter, Request

MAX_POSITION = 8192
"""With the idempotency keys of a batch this stays below the 64 KiB that the server allows for headers."""

_MAX_HEADER = 2 * MAX_POSITION + 2048


Level = Literal["accepted", "stored", "hub"]
"""What an acknowledgement of an input means: in this agent's memory, in the local stream, or held by the hub.
The core knows it by the input's name; docs/acknowledgement.md says what each survives."""


class Chunk(Struct, frozen=True):
    """Readings that are stored together or not at all, but for what rules make of them. Raises `ValueError`
    for a position that cannot travel in a header, and for letters without a position."""

    payload: bytes
    """NDJSON: validated lines with `ts` and `device`, each ended by a newline."""
    count: int
    """How many lines."""
    request: Request | None = None
    """That of a push input, by which a repeat is recognised."""
    position: str | None = None
    """That of a pull input after these lines: printable ASCII of up to `MAX_POSITION` characters. Within the
    core it holds more than the input's own."""
    letters: tuple[Letter, ...] = ()
    """What of the piece of a pull input is no reading."""
    dead: bool = False
    """Whether the lines are dead letters; set within the core only."""
    on_settled: Callable[[int | None], None] | None = None
    """Called within the core with the sequence at which the stream holds the chunk, or with None once it is
    certain that the stream does not and will not."""

    def __post_init__(self) -> None:
        position = self.position
        if position is None:
            if self.letters:
                raise ValueError("letters without a position are handed to dead_letter")
            return
        if len(position) > _MAX_HEADER or not (position.isascii() and position.isprintable()):
            raise ValueError(f"position {position!r:.80} is not printable ASCII of up to {_MAX_HEADER}")


class ResumePoint(Struct, frozen=True):
    """Where a pull input goes on."""

    position: str | None = None
    """Go on behind this position, None: at the beginning."""
    until: str | None = None
    """If it is given, a part of the lines from `position` up to here is stored already. The next chunk must
    hold the same lines as before, end here and have this text as its position; the core then leaves out what
    is stored."""
    lost: bool = False
    """Whether the position is lost, though the input may have stored a lot."""


class Notes(Protocol):
    """What the core keeps for pull inputs beside their positions."""

    def take_stale(self, input_name: str) -> bool:
        """Whether the position of an input may be older than what it has stored: the state is that of an
        older copy."""

    async def kept(self, input_name: str) -> str | None:
        """The text that an input kept last. Raises `OSError`."""

    async def keep(self, input_name: str, text: str) -> None:
        """Keep a text, on disk when it returns. Raises `OSError`."""

    async def doubt(self, cls: str, doubt: Doubt) -> None:
        """Name lines in the ledger that may be stored twice or may be lacking."""


class RefusalReason(StrEnum):
    """Why a chunk was refused; the value is the label of the metric."""

    TOO_LARGE = "too_large"
    FULL = "stream_full"
    BUSY = "busy"
    UNAVAILABLE = "server_away"
    STOPPING = "stopping"
    KEY_REUSED = "key_reused"
    KEY_INCOMPLETE = "key_incomplete"
    RATE = "rate_limit"


class RefusedError(Exception):
    """The chunk is not stored and will not be: its sender still has it. `retry_after` is in seconds, None
    when the same chunk would be refused again."""

    def __init__(self, reason: RefusalReason, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.retry_after = retry_after


class UnknownOutcomeError(Exception):
    """The chunk was sent and not answered in time. It may be stored or not; the agent goes on trying, and a
    request repeated under its key learns the outcome."""


class NotAtHubError(UnknownOutcomeError):
    """Level `hub` only: the chunk is stored here, and the hub was not seen to hold it in time. It goes there
    by itself; a request repeated under its key waits for that again and is not stored twice, anything else
    that is handed in again is. `lost`: the local store was lost or restored from a backup meanwhile, so that
    this is unknown."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost


class Intake(Protocol):
    """The core as an input sees it."""

    @property
    def domain(self) -> str:
        """The domain of this machine, the default `device` of a reading."""

    @property
    def notes(self) -> Notes:
        """What is kept for pull inputs."""

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Take a chunk in; return when the input's level is reached: `accepted` once it is in memory,
        `stored` after the PubAck, `hub` once the hub holds it. A chunk whose request key is known as stored
        is not stored again, one whose key is in flight waits for that one; one with a position is never
        acknowledged before it is stored, and not stored again where that is the stored position: then it
        waits for the level. Waits while too much is in flight: that is how backpressure reaches the input.
        Raises `RefusedError`, `UnknownOutcomeError` or `NotAtHubError`."""

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Keep what an input received and could not take, when there is no sender whom it could refuse.
        Returns as `submit` does, or at once where more letters come than may be kept: they are then counted
        only. Raises `RefusedError` (the letters are neither stored nor counted) or `UnknownOutcomeError`.
        What a message does not hold goes into further ones, and is counted only where those are refused."""

    async def position(self, input_name: str) -> ResumePoint:
        """Where the input goes on. Waits while a batch of the input is in flight, and for the local server;
        an input that is stopping cancels the wait. Raises `ContractError` when what is stored can't be
        read."""


Settled = Callable[[Exception | None], None]
"""Takes the outcome of a chunk: None once the level of the input is reached, else what `submit` would raise.
It must not raise."""


@runtime_checkable
class QuickIntake(Intake, Protocol):
    """An intake that needs no task for a chunk for which it only waits for the store."""

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Take a chunk in as `submit` does, at once; `settled` is called later. False where there is more to
        wait for, such as room in memory: nothing is taken in then, and `submit` does it. Raises
        `RefusedError`."""


class Input(Protocol):
    """One input. `run` ends once `stopping` is set and all that was accepted has been answered; it takes in
    nothing new from then on."""

    @property
    def name(self) -> str:
        """The name in the configuration and in the batch subject."""

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Take in readings until `stopping` is set."""


class CheckedInput(Input, Protocol):
    """An input that can say before it runs why it cannot."""

    def check(self) -> list[str]:
        """The mistakes in its options, a sentence each."""

    def obstacles(self) -> list[str]:
        """What keeps it from running on this machine now, a sentence each."""
