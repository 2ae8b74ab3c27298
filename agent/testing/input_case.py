"""Describes an input for the suite, and judges stored readings. Pure except for cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from agent.demo.plan import Member
from agent.testing.agent_process import AgentProcess


class InputCase(NamedTuple):
    """One input and its sender. `Member` is the tested agent, with `directory` and a free `http_port`.

    Senders submit readings of metric `n` with numeric values.
    """

    name: str
    """The input's name in `toml`."""
    toml: Callable[[Member], str]
    """Lines of its `[[input]]` without header."""
    offer: Callable[[AgentProcess, range], None] | None = None
    """Submits a reading per number until answered, or sent, repeating as the protocol does. None if the input
    makes its own.
    """
    send: Callable[[AgentProcess, bytes], object] | None = None
    """Submits one of `bad` once."""
    bad: tuple[tuple[bytes, str], ...] = ()
    """Invalid data with the reason in `petiole_invalid_requests_total`."""
    beside: Callable[[Member], AbstractContextManager[object]] = nullcontext
    """Runs beside the agent during a test."""
    adds: frozenset[str] = frozenset()
    """Metrics that the input adds."""
    fill: Callable[[AgentProcess, str], object] | None = None
    """Submits a `noise` reading with this 10 kB text once, to fill the stream. None if `offer` fills 16 KiB
    with 150 numbers.
    """
    acknowledges: bool = True
    """Whether losses are known or repeatable. If not, SIGKILL may lose readings; none is doubled."""


class Verdict(NamedTuple):
    """The outcome of readings up to a count."""

    lost: list[int]
    doubled: list[float]
    strange: list[float]
    """Numbers never submitted."""


def judge(stored: Counter[float], count: int) -> Verdict:
    """Compare submitted with stored numbers."""
    return Verdict(
        [number for number in range(count) if number not in stored],
        [number for number, times in stored.items() if times > 1],
        [number for number in stored if number not in range(count)],
    )
