"""Defines what inputs submit to the core and what it answers. Inputs import only this of the publish path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from agent.contract import Doubt, Letter, Request

MAX_POSITION = 8192
"""With a batch's idempotency keys this fits the server's 64 KiB of headers."""

_MAX_HEADER = 2 * MAX_POSITION + 2048


Level = Literal["accepted", "stored", "hub"]
"""Meaning of an acknowledgement: in memory, in the local stream, or at the hub;
see docs/acknowledgement.md.
"""


class Chunk(Struct, frozen=True):
    """Readings stored together or not at all, except for rules.

    Raises `ValueError` for a position that does not fit a header, and for letters without position.
    """

    payload: bytes
    """NDJSON: validated lines with `ts` and `device` and newlines."""
    count: int
    """Number of lines."""
    request: Request | None = None
    """A push input's request, to recognise repeats."""
    position: str | None = None
    """A pull input's position after these lines: printable ASCII up to `MAX_POSITION`. The core adds
    to it.
    """
    letters: tuple[Letter, ...] = ()
    """Invalid parts of a pull input's piece."""
    dead: bool = False
    """Whether the lines are dead letters; set by the core."""
    on_settled: Callable[[int | None], None] | None = None
    """Called by the core with the sequence, or None when surely not stored."""

    def __post_init__(self) -> None:
        position = self.position
        if position is None:
            if self.letters:
                raise ValueError("letters without a position are handed to dead_letter")
            return
        if len(position) > _MAX_HEADER or not (position.isascii() and position.isprintable()):
            raise ValueError(f"position {position!r:.80} is not printable ASCII of up to {_MAX_HEADER}")


class ResumePoint(Struct, frozen=True):
    """Where a pull input continues."""

    position: str | None = None
    """Continue after this position; None for the beginning."""
    until: str | None = None
    """If set, lines up to here are partly stored. The next chunk must hold the same lines and end here; the
    core omits stored ones.
    """
    lost: bool = False
    """Whether the position is lost though the input may have stored data."""


class Notes(Protocol):
    """Data that the core keeps for pull inputs beside positions."""

    def take_stale(self, input_name: str) -> bool:
        """Tell whether an input's position may be older than its stored data, from a restored state."""

    async def kept(self, input_name: str) -> str | None:
        """Return an input's last text. Raises `OSError`."""

    async def keep(self, input_name: str, text: str) -> None:
        """Store a text durably. Raises `OSError`."""

    async def doubt(self, cls: str, doubt: Doubt) -> None:
        """Record possibly doubled or missing lines in the ledger."""


class RefusalReason(StrEnum):
    """The reason of a refusal: the metric label, the HTTP status, and the usual seconds to a retry (None:
    never). Each has a row in docs/what-to-do.md.
    """

    TOO_LARGE = "too_large", 413, None
    FULL = "stream_full", 429, 5.0
    BUSY = "busy", 503, 1.0
    UNAVAILABLE = "server_away", 503, 5.0
    STOPPING = "stopping", 503, 5.0
    KEY_REUSED = "key_reused", 422, None
    KEY_INCOMPLETE = "key_incomplete", 422, None
    RATE = "rate_limit", 429, 5.0

    status: int
    retry_after: float | None

    def __new__(cls, label: str, status: int, retry_after: float | None) -> RefusalReason:
        member = str.__new__(cls, label)
        member._value_, member.status, member.retry_after = label, status, retry_after
        return member


class RefusedError(Exception):
    """The chunk is not and will not be stored; its sender keeps it. `retry_after` in seconds, None
    for never; by default that of the reason.
    """

    def __init__(self, reason: RefusalReason, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.retry_after = reason.retry_after if retry_after is None else retry_after


class UnknownOutcomeError(Exception):
    """The chunk was sent without a timely answer. The agent continues; a repeat with the same key learns the
    outcome.
    """


class NotAtHubError(UnknownOutcomeError):
    """The chunk is stored here but was not seen at the hub in time (level `hub`).

    It will be delivered. A repeat with the same key waits again; other repeats are stored twice. `lost`: the
    local store was lost or restored meanwhile.
    """

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost


class Intake(Protocol):
    """The core's interface for inputs."""

    @property
    def domain(self) -> str:
        """This machine's domain, the default `device`."""

    @property
    def notes(self) -> Notes:
        """The notes of pull inputs."""

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        """Store a chunk and return at the input's level: `accepted` in memory, `stored` after the PubAck,
        `hub` at the hub.

        Repeats with a known key or position are not stored again but wait for the level. A position is never
        acknowledged before it is stored. Waits at the in-flight limit (backpressure). Raises `RefusedError`,
        `UnknownOutcomeError` or `NotAtHubError`.
        """

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        """Store invalid data of senders that can't be refused; excess letters are only counted.

        Letters beyond the first message go into further ones, and are only counted if these are refused.
        Returns as `submit`. Raises `RefusedError` (neither stored nor counted) or `UnknownOutcomeError`.
        """

    async def position(self, input_name: str) -> ResumePoint:
        """Return where the input continues, after its batches in flight are settled and the server is there.

        Raises `ContractError` for an unreadable stored position.
        """


Settled = Callable[[Exception | None], None]
"""Receives a chunk's outcome: None at the input's level, else the error of `submit`. Must not raise."""


@runtime_checkable
class QuickIntake(Intake, Protocol):
    """An intake that can store without a task."""

    def hand_in(self, input_name: str, cls: str, chunk: Chunk, settled: Settled) -> bool:
        """Submit at once and call `settled` later; False, without effect, if waiting is needed. Raises
        `RefusedError`. Brings 30 to 60 % more small requests a CPU-second than a task for each.
        """


class Input(Protocol):
    """One input. `run` ends after `stopping` once everything accepted is answered."""

    @property
    def name(self) -> str:
        """Name in the configuration and batch subjects."""

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Accept readings until `stopping`."""


class CheckedInput(Input, Protocol):
    """An input that checks itself before it runs."""

    def check(self) -> list[str]:
        """Return mistakes in its options, a sentence each."""

    def obstacles(self) -> list[str]:
        """Return temporary obstacles of this machine, a sentence each."""
