"""Says what the acknowledgement level of each input means on the present server, in one sentence: at start,
and whenever that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from agent.leaf.intake import Level
from agent.server.health import ServerHealth

_LOOK_SECONDS: Final = 2.0
_FIRST_LOOKS: Final = 5
"""After so many looks the sentence says that it is not known."""

log = structlog.get_logger("acknowledgement")


def meaning(level: Level, synced: bool | None, hub_seconds: float = 0.0) -> str:
    """What an acknowledgement means; `synced` says whether the server syncs before it acknowledges, None
    where that is not known, and `hub_seconds` how often the hub's does, 0 if before it acknowledges."""
    if level == "accepted":
        return "in this agent's memory: a crash or a stop without the server loses it"
    if synced:
        stored = "in the local stream, synced to disk: it survives a power cut"
    elif synced is None:
        stored = "in the local stream; whether that is synced to disk is not known"
    else:
        stored = "in the local stream, not synced to disk: a power cut may lose it"
    if level == "stored":
        return stored
    if hub_seconds:
        return (
            f"held by the hub, whose server syncs its disk each {hub_seconds:g} s, "
            f"and until that disk has it {stored}"
        )
    return f"held by the hub, and {stored}"


class AckLevels:
    """The levels of all inputs, by name; `hub_seconds` returns how often the hub's server syncs its disk."""

    def __init__(
        self, levels: Mapping[str, Level], health: ServerHealth, hub_seconds: Callable[[], float]
    ) -> None:
        self._levels, self._health, self._hub_seconds = levels, health, hub_seconds

    def meanings(self) -> dict[str, str]:
        """Each input's sentence, as `/status` shows it."""
        return {name: self._sentence(level) for name, level in self._levels.items()}

    async def run(self) -> None:
        """Log each input's sentence once what the server does is known, and again when it does otherwise,
        until cancelled."""
        looks, logged = 0, dict[str, str]()
        while True:
            if self._health.is_synced is not None or logged or looks >= _FIRST_LOOKS:
                logged = self._log(logged)
            looks += 1
            await asyncio.sleep(_LOOK_SECONDS)

    def _log(self, logged: dict[str, str]) -> dict[str, str]:
        now = self.meanings()
        for name, sentence in now.items():
            if logged.get(name) != sentence:
                safe = self._health.is_synced is not False or self._levels[name] == "accepted"
                say = log.info if safe else log.warning
                say("acknowledgement level", input=name, ack=self._levels[name], means=sentence)
        return now

    def _sentence(self, level: Level) -> str:
        return meaning(level, self._health.is_synced, self._hub_seconds())
