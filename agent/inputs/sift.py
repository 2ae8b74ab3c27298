"""Parting lines that are readings from lines that are not, for inputs that cannot send a whole body back. No
I/O."""

from __future__ import annotations

from dataclasses import dataclass

from agent.decoder import BadLinesError, decode_ndjson


@dataclass(frozen=True, slots=True)
class Sifted:
    """What may be stored of some lines: NDJSON of `count` readings; and what not: the offset of each bad
    line, with the reason."""

    payload: bytes
    count: int
    bad: tuple[tuple[int, str], ...] = ()


def sift(lines: bytes, domain: str, now_ns: int) -> Sifted:
    """Part good lines from bad ones. `now_ns` (ns since 1970) and `domain` fill in what a line leaves out."""
    try:
        decoded = decode_ndjson(lines, domain, now_ns)
    except BadLinesError:
        pass
    else:
        return Sifted(decoded.payload, decoded.count)
    good, bad = [], []
    offset = 0
    for line in lines.split(b"\n"):
        try:
            good.append(decode_ndjson(line, domain, now_ns))
        except BadLinesError as error:
            bad.append((offset, error.lines[0][1]))
        offset += len(line) + 1
    return Sifted(b"".join(one.payload for one in good), sum(one.count for one in good), tuple(bad))
