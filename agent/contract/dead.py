"""Dead letters: what an input received and could not take, when there was no sender to whom it could be
refused.

They travel like readings: one message on `tel.<domain>.<class>._dead.<input>` has the headers of a batch, an
`n` of the same series and NDJSON of `Petiole-Count` letters. In the ledger its `n` is among those stored,
its letters are counted as accepted and dead, never as stored; so are letters beyond the limit of what is
kept, which are in no message.

A letter is `{"at": …, "reason": …, "text": …}`, or with `base64` instead of `text` where what was received is
not UTF-8. `size` is there when only the beginning of what was received is: how many bytes it had. `omitted`
says how many letters of this input and class since the letter before were counted only.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from agent.contract.checks import ContractError, count_of, field_of

__all__ = ["MAX_PLACE", "MAX_REASON", "MAX_RECEIVED", "Letter", "parse_letter"]

MAX_RECEIVED: Final = 8 * 1024
"""Bytes that are kept of what was received."""
MAX_PLACE: Final = 512
MAX_REASON: Final = 500
_CUT: Final = "…"
_WHAT: Final = "dead letter"


@dataclass(frozen=True, slots=True)
class Letter:
    """Something `received` that could not be taken: where it stood (a file and the byte, a topic, a sender),
    and the `reason` in words. `size` is how many bytes it had, None where `received` is all of it."""

    received: bytes
    at: str
    reason: str
    size: int | None = None
    omitted: int = 0

    def encode(self) -> bytes:
        """The letter as one JSON line, without the newline, cut to the bounds of this module."""
        kept, text = _kept(self.received, cut=self.size is not None)
        row: dict[str, object] = {
            "at": _short(self.at, MAX_PLACE),
            "reason": _short(self.reason, MAX_REASON),
        }
        if text is None:
            row["base64"] = base64.b64encode(kept).decode()
        else:
            row["text"] = text
        if self.size is not None or len(kept) < len(self.received):
            row["size"] = max(self.size or 0, len(self.received))
        if self.omitted:
            row["omitted"] = self.omitted
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def parse_letter(line: bytes | str) -> Letter:
    """Read a letter; fields that are not known are ignored. Raises `ContractError`."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{_WHAT}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ContractError(f"{_WHAT}: an object was expected, not {type(row).__name__}")
    return Letter(
        _received(row),
        field_of(row, "at", str, _WHAT),
        field_of(row, "reason", str, _WHAT),
        count_of(row, "size", _WHAT) if "size" in row else None,
        count_of(row, "omitted", _WHAT) if "omitted" in row else 0,
    )


def _received(row: dict[str, Any]) -> bytes:
    if "base64" not in row:
        text: str = field_of(row, "text", str, _WHAT)
        return text.encode(errors="replace")
    try:
        return base64.b64decode(field_of(row, "base64", str, _WHAT), validate=True)
    except ValueError as error:
        raise ContractError(f"{_WHAT}: base64 cannot be read: {error}") from None


def _kept(received: bytes, *, cut: bool) -> tuple[bytes, str | None]:
    """What is kept, and the same as text where it is text; a character is not cut in two."""
    kept = received[:MAX_RECEIVED]
    try:
        return kept, kept.decode()
    except UnicodeDecodeError as error:
        broken = error.reason == "unexpected end of data" and (cut or len(kept) < len(received))
        if not broken:
            return kept, None
        return kept[: error.start], kept[: error.start].decode()


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + _CUT
