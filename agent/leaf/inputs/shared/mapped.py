"""Applies mappings to the payloads of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from agent.contract import MAX_RECEIVED, Letter
from agent.leaf.inputs.formats import Parsed, blocks_of_lines
from agent.mapping.compiled import MapError, MappingError, compile_map
from agent.mapping.schema import Map

_BLOCK: Final = 8 * 1024
"""Bytes of lines mapped at once, about a millisecond."""


class MappedPayload(Struct):
    """The readings of a payload, and the letter that names its odd members or the payload itself."""

    payload: bytes
    count: int
    no_value: int = 0
    letter: Letter | None = None
    odd: int = 0
    """Number of odd members, 1 for a whole payload."""
    is_dated: bool = False
    """Whether each reading has a time of its own."""


class PayloadMapper:
    """A mapping of one input; `separator` is that of its topics, None without topics. Raises `MapError`."""

    def __init__(self, given: Map, domain: str, separator: str | None = "/") -> None:
        self._mapping = compile_map(
            given, domain, has_topic=separator is not None, separator=separator or "/"
        )

    def take(self, received: bytes, topic: str, now_ns: int, mark: str | None = None) -> MappedPayload:
        """Map a payload that arrived at `now_ns` (ns since 1970). Readings with that as their time get the
        tag `mark`. Raises nothing.
        """
        try:
            mapped = self._mapping.apply(received, now_ns, topic, mark)
        except MappingError as error:
            return MappedPayload(b"", 0, letter=_letter(received, topic, str(error)), odd=1)
        found = MappedPayload(mapped.payload, mapped.count, mapped.no_value, is_dated=mapped.is_dated)
        if mapped.odd:
            found.letter, found.odd = _letter(received, topic, mapped.reason()), mapped.odd_count
        return found


class MappedParser:
    """Parses lines of one payload each like a `LineParser`. Raises `MapError`."""

    def __init__(self, given: Map, domain: str) -> None:
        self._mapping = compile_map(given, domain, has_topic=False)

    def is_whole(self, line: bytes) -> bool:
        return line.rstrip().endswith((b"}", b"]"))

    def parts(self, lines: bytes, now_ns: int) -> Iterator[Parsed]:
        for offset, block in blocks_of_lines(lines, _BLOCK):
            yield self._parse(block, offset, now_ns)

    def _parse(self, block: bytes, offset: int, now_ns: int) -> Parsed:
        good: list[bytes] = []
        bad: list[tuple[int, str]] = []
        count = no_value = 0
        for line in block.split(b"\n"):
            if line.strip():
                try:
                    mapped = self._mapping.apply(line, now_ns)
                except MappingError as error:
                    bad.append((offset, str(error)))
                else:
                    good.append(mapped.payload)
                    count, no_value = count + mapped.count, no_value + mapped.no_value
                    if mapped.odd:
                        bad.append((offset, mapped.reason()))
            offset += len(line) + 1
        return Parsed(b"".join(good), count, tuple(bad), no_value)


def map_problems(given: Map | None, domain: str, *, has_topic: bool) -> Iterator[str]:
    """Yield the faults of a mapping at an input: fault; remedy."""
    if given is None:
        return
    try:
        compile_map(given, domain, has_topic=has_topic)
    except MapError as error:
        for problem in error.problems:
            yield f"map {given.name}: {problem.key}: {problem.stood}; {problem.remedy}"


def _letter(received: bytes, at: str, reason: str) -> Letter:
    size = len(received) if len(received) > MAX_RECEIVED else None
    return Letter(received[:MAX_RECEIVED], at, reason, size)
