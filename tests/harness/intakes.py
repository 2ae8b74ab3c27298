"""What a test's stand-in for the core need not write itself."""

from __future__ import annotations

from collections.abc import Sequence

from agent.contract import Letter


class NoLetters:
    """The part of an `Intake` that an input with a sender to answer never calls."""

    async def dead_letter(self, input_name: str, cls: str, letters: Sequence[Letter]) -> None:
        raise AssertionError(f"{input_name} buries {letters}")
