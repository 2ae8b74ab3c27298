"""Limits dead letters, so that garbage does not fill the stream: `BURST_BYTES` per class, then `RATE_BYTES` a
second.

Excess letters are counted, and the next kept one reports them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog
from msgspec import Struct

from agent.base.logs import LogEdge
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.contract import MAX_BATCH_BYTES, Letter
from agent.leaf.intake import Chunk, RefusedError, UnknownOutcomeError
from agent.leaf.ledger import ClassLedger

BURST_BYTES: Final = 2**20
RATE_BYTES: Final = 1024.0
_MESSAGE_BYTES: Final = 512
"""A message's bytes beside its letters."""

log = structlog.get_logger("letters")


class Admitted(Struct, frozen=True):
    """The admitted first letters, up to a message's size."""

    payload: bytes
    """NDJSON."""
    count: int
    """Letters in the payload."""
    omitted: int
    """Further letters, only counted."""
    reported: int
    """Earlier omitted letters, reported by the first one."""
    cost: int
    """Bytes charged."""


class LetterLimit:
    """The limit of one class. Pure; monotonic seconds."""

    def __init__(self) -> None:
        self._room = float(BURST_BYTES)
        self._at = float("-inf")
        self._unreported: dict[str, int] = {}

    def keep(self, input_name: str, letters: Sequence[Letter], now: float) -> Admitted:
        """Charge for the letters that fit and omit others; letters beyond a message wait for the
        next call.
        """
        self._room = min(float(BURST_BYTES), self._room + (now - self._at) * RATE_BYTES)
        self._at = now
        lines: list[bytes] = []
        reported, cost, omitted = self._unreported.pop(input_name, 0), _MESSAGE_BYTES, 0
        for letter in letters:
            line = (replace(letter, omitted=reported) if not lines and reported else letter).encode() + b"\n"
            if cost + len(line) > self._room:
                omitted = len(letters) - len(lines)
                break
            if lines and cost + len(line) > MAX_BATCH_BYTES:
                break
            lines.append(line)
            cost += len(line)
        if not lines:
            self._note(input_name, reported)
            return Admitted(b"", 0, omitted, 0, 0)
        self._room -= cost
        return Admitted(b"".join(lines), len(lines), omitted, reported, cost)

    def give_back(self, input_name: str, kept: Admitted) -> None:
        """Undo a charge after a refusal."""
        self._room += kept.cost
        self._note(input_name, kept.reported)

    def pass_over(self, input_name: str, kept: Admitted) -> None:
        """Count letters that could not be stored."""
        self._note(input_name, kept.omitted)

    def _note(self, input_name: str, count: int) -> None:
        if count:
            self._unreported[input_name] = self._unreported.get(input_name, 0) + count


class DeadLetterWriter:
    """Stores letters of all inputs through `submit`."""

    def __init__(
        self,
        submit: Callable[[str, str, Chunk], Awaitable[None]],
        ledgers: Mapping[str, ClassLedger],
        metrics: Metrics,
    ) -> None:
        self._submit, self._ledgers, self._metrics = submit, ledgers, metrics
        self._limits = {cls: LetterLimit() for cls in ledgers}
        self._over: dict[tuple[str, str], LogEdge] = {}

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        done = 0
        while done < len(letters):
            kept = self.keep(input_name, cls, letters[done:])
            try:
                if kept.count:
                    await self._submit(input_name, cls, Chunk(kept.payload, kept.count, dead=True))
            except UnknownOutcomeError:
                self.done(input_name, cls, kept)
                raise
            except RefusedError:
                self.give_back(input_name, cls, kept)
                if not done:
                    raise
                # Some of them are stored: to be handed in again would store those twice.
                kept = Admitted(b"", 0, len(letters) - done, 0, 0)
            except BaseException:
                self.give_back(input_name, cls, kept)
                raise
            self.done(input_name, cls, kept)
            done += kept.count + kept.omitted

    def keep(self, input_name: str, cls: str, letters: Sequence[Letter]) -> Admitted:
        """Return the letters to store; call `done` or `give_back` afterwards."""
        return self._limits[cls].keep(input_name, letters, loop_time())

    def give_back(self, input_name: str, cls: str, kept: Admitted) -> None:
        """Undo `keep` after a refusal."""
        self._limits[cls].give_back(input_name, kept)

    def done(self, input_name: str, cls: str, kept: Admitted) -> None:
        """Note stored letters; logs omitted ones once."""
        key = (input_name, cls)
        if not kept.omitted:
            if key in self._over:
                self._over[key].end()
            return
        self._limits[cls].pass_over(input_name, kept)
        self._ledgers[cls].omit(kept.omitted)
        self._metrics.accepted.labels(*key).inc(kept.omitted)
        self._metrics.dead.labels(*key).inc(kept.omitted)
        self._metrics.omitted.labels(*key).inc(kept.omitted)
        bound = log.bind(**{"input": input_name, "class": cls})
        self._over.setdefault(key, LogEdge(bound)).begin(
            f"more dead letters come than {RATE_BYTES:.0f} bytes a second: they are counted only"
        )
