"""Keeps and applies temporary settings; each ends in time, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from agent.base import logs
from agent.base.clock import Instant, Look
from agent.base.supervisor import Switch
from agent.base.wait import event_within
from agent.config import Config
from agent.leaf.publish.publisher import Publisher
from agent.leaf.state import Setting
from agent.leaf.state_file import StateFile

LINK: Final = "link"
Value = str | float | bool
Setter = Callable[[Value | None, float], None]
"""Applies a value for so many seconds; None restores the configured one."""
_LOOK_SECONDS: Final = 60.0

log = structlog.get_logger("commands")


class CommandError(Exception):
    """The command failed; nothing was changed."""


def seconds_left(setting: Setting, now: Instant) -> float:
    """Return a setting's remaining seconds, 0 or less if ended.

    After a reboot the wall clock decides; behind the setting's start it has ended.
    """
    if setting.boot == now.clock.boot:
        return setting.deadline - now.clock.monotonic / 1e9
    wall = now.wall / 1e9
    return setting.until - wall if wall >= setting.since else 0.0


class Overrides:
    """Temporary settings; `setters` apply them by name."""

    def __init__(self, state: StateFile, setters: Mapping[str, Setter], now: Look) -> None:
        self._state, self._setters, self._now = state, setters, now
        self._changed = asyncio.Event()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._setters)

    def restore(self) -> None:
        """Apply earlier settings that still hold."""
        now = self._now()
        for name, setting in list(self._state.current.settings.items()):
            left = seconds_left(setting, now)
            if left > 0 and name in self._setters:
                self._setters[name](setting.value, left)
                log.info("override restored", setting=name, value=setting.value, seconds_left=round(left))
            else:
                del self._state.current.settings[name]
                self._state.mark()

    def replace_setters(self, setters: Mapping[str, Setter]) -> None:
        """Replace the setters; settings without one end."""
        self._setters = setters
        self._expire()  # what is over is not restored, and was not ended yet
        self.restore()

    async def put(self, values: Mapping[str, Value], seconds: float) -> None:
        """Apply values for a time. Raises `CommandError` without any change."""
        now = self._now()
        since, deadline = now.wall / 1e9, now.clock.monotonic / 1e9 + seconds
        added = {
            name: Setting(value, since, since + seconds, now.clock.boot, deadline)
            for name, value in values.items()
        }
        await self._save(self._state.current.settings | added)
        for name, value in values.items():
            self._setters[name](value, seconds)

    async def drop(self, name: str) -> bool:
        """Restore the configured value; False if it holds already. Raises `CommandError` without
        any change.
        """
        settings = dict(self._state.current.settings)
        was_set = settings.pop(name, None) is not None
        if was_set:
            await self._save(settings)
        self._setters[name](None, 0.0)
        return was_set

    def shown(self) -> dict[str, Any]:
        """Return the settings for `/status`."""
        now = self._now()
        return {
            name: {"value": setting.value, "seconds_left": round(max(0.0, seconds_left(setting, now)))}
            for name, setting in self._state.current.settings.items()
        }

    async def run(self) -> None:
        """End each setting in time, until cancelled."""
        while True:
            self._changed.clear()
            nearest = self._expire()
            await event_within(self._changed, None if nearest is None else min(nearest, _LOOK_SECONDS))

    def _expire(self) -> float | None:
        """End expired settings; returns the seconds until the next end."""
        now = self._now()
        left = {name: seconds_left(setting, now) for name, setting in self._state.current.settings.items()}
        for name in [name for name, seconds in left.items() if seconds <= 0]:
            del self._state.current.settings[name]
            self._state.mark()
            if (setter := self._setters.get(name)) is not None:
                setter(None, 0.0)
            log.info("override ended", setting=name)
        return min((seconds for seconds in left.values() if seconds > 0), default=None)

    async def _save(self, settings: dict[str, Setting]) -> None:
        before = self._state.current.settings
        self._state.current.settings = settings
        try:
            await self._state.save()
        except OSError as error:
            self._state.current.settings = before
            raise CommandError(f"the state file cannot be written ({error}): nothing was changed") from None
        self._changed.set()


class LinkControl(Protocol):
    def pause(self, seconds: float) -> None:
        """Stop the link for so many seconds."""

    def resume(self) -> None:
        pass


def make_setters(
    config: Config, publisher: Publisher, switches: Mapping[str, Switch], link: LinkControl
) -> dict[str, Setter]:

    def log_level(value: Value | None, _seconds: float) -> None:
        logs.set_level(config.log.level if value is None else str(value))

    def linger(value: Value | None, _seconds: float) -> None:
        publisher.batches.override_linger(None if value is None else float(value))

    def rate_limit(value: Value | None, _seconds: float) -> None:
        publisher.admission.limit_rate(None if value is None else float(value))

    return {
        "log_level": log_level,
        "linger": linger,
        "rate_limit": rate_limit,
        LINK: lambda value, seconds: link.resume() if value is None else link.pause(seconds),
        **{f"input.{name}": _switch(switch) for name, switch in switches.items()},
    }


def _switch(switch: Switch) -> Setter:
    return lambda value, _seconds: switch.turn(value is None or bool(value))
