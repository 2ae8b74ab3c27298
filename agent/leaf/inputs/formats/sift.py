"""Parting lines that are readings from lines that are not, for inputs that cannot send a whole body back. No
I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.leaf.inputs.formats.ndjson import split_slices


@dataclass(frozen=True, slots=True)
class Parsed:
    """What may be stored of some lines: NDJSON of `count` readings; and what not: the offset of each bad
    line, with the reason."""

    payload: bytes
    count: int
    bad: tuple[tuple[int, str], ...] = ()


def sift(lines: bytes, domain: str, now_ns: int) -> Parsed:
    """Part good lines from bad ones. `now_ns` (ns since 1970) and `domain` fill in what a line leaves out."""
    return join_sifted(list(sift_parts(lines, domain, now_ns)))


def sift_parts(lines: bytes, domain: str, now_ns: int) -> Iterator[Parsed]:
    """The same in parts of a few milliseconds."""
    for good, bad in split_slices(lines, domain, now_ns):
        yield Parsed(good.payload, good.count, tuple(bad))


def join_sifted(parts: list[Parsed]) -> Parsed:
    """Parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Parsed(
        b"".join(part.payload for part in parts),
        sum(part.count for part in parts),
        tuple(bad for part in parts for bad in part.bad),
    )
