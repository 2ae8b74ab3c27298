"""What the suite must know of an input: how it is configured, how readings are handed to it, and what it must
refuse; and the judgement of what was stored. Pure but for what a case does itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from agent.demo.plan import Member
from agent.testing.agent_process import AgentProcess


class InputCase(NamedTuple):
    """One input, and a sender of its protocol. A `Member` is the agent that a test has just made: it has a
    `directory`, and `http_port` is a free port for the input. What a sender hands in are readings of the
    metric `n` whose values are numbers, by which they are counted."""

    name: str
    """The input's name in `toml`."""
    toml: Callable[[Member], str]
    """The lines of its `[[input]]`, without that header."""
    offer: Callable[[AgentProcess, range], None] | None = None
    """Hands in a reading for each number, and returns when the input answers for them, or else when they are
    sent, whatever dies meanwhile: it repeats what the protocol repeats. None for an input that makes its
    readings itself."""
    send: Callable[[AgentProcess, bytes], object] | None = None
    """Hands in one of `bad`, without insisting."""
    bad: tuple[tuple[bytes, str], ...] = ()
    """What the input must not take, each with the reason under which `petiole_invalid_requests_total` counts
    it."""
    beside: Callable[[Member], AbstractContextManager[object]] = nullcontext
    """What runs beside the agent, for the time of a test."""
    adds: frozenset[str] = frozenset()
    """The metrics of readings that come besides those that are handed in."""
    fill: Callable[[AgentProcess, str], object] | None = None
    """Hands in a reading of the metric `noise` that holds this text of 10 kB, without insisting: it fills the
    stream. None where `offer` fills 16 KiB with 150 numbers."""
    acknowledges: bool = True
    """Whether a sender learns what was not stored, or a source can be read again from a place on. Without
    that a SIGKILL may lose readings: the suite then shows how many, and still takes none twice."""


class Verdict(NamedTuple):
    """What became of the readings with the numbers up to a count."""

    lost: list[int]
    doubled: list[float]
    strange: list[float]
    """Numbers that were not handed in."""


def judge(stored: Counter[float], count: int) -> Verdict:
    """Compare the numbers that were handed in with those that are stored, each so many times."""
    return Verdict(
        [number for number in range(count) if number not in stored],
        [number for number, times in stored.items() if times > 1],
        [number for number in stored if number not in range(count)],
    )
