"""Where the lines of a growing file end. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agent import contract


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What is taken at a time: at most `bytes` and `lines`, but always one line where there is one. `line` is
    the longest line in bytes, newline included, and how much is read at once; a longer one is not waited
    for."""

    line: int = contract.MAX_BATCH_BYTES
    bytes: int = contract.MAX_BATCH_BYTES
    lines: int = contract.MAX_BATCH_READINGS


class Cut(NamedTuple):
    """What to make of bytes read at an offset: the lines are `data[start:stop]`, the next read begins at
    `stop`. `skipping` says that it then begins inside a line that is too long, `too_long` that one was
    met."""

    start: int
    stop: int
    skipping: bool = False
    too_long: bool = False


def cut(data: bytes, limits: ReadLimits, *, skipping: bool = False, last: bool = False) -> Cut:
    """Find the whole lines at the beginning of `data`, which holds `limits.line` bytes or all there is.
    `skipping` as the cut before said. `last` says that nothing will be appended any more: what then stands at
    the end without a newline is a line too."""
    start = _hole(data)
    if skipping:
        start = data.find(b"\n") + 1
        if not start:
            return Cut(len(data), len(data), skipping=True)
    stop = data.rfind(b"\n", start, start + limits.bytes) + 1 or data.find(b"\n", start) + 1
    if not stop:
        if len(data) - start >= limits.line:
            return Cut(len(data), len(data), skipping=True, too_long=True)
        return Cut(start, len(data) if last else start)
    if data.count(b"\n", start, stop) > limits.lines:
        stop -= len(data[start:stop].split(b"\n", limits.lines)[-1])
    return Cut(start, stop)


def _hole(data: bytes) -> int:
    """How many NULs lead: a writer that does not append goes on at its own offset after a truncation, and the
    file then has a hole before it."""
    return len(data) - len(data.lstrip(b"\0")) if data.startswith(b"\0") else 0
