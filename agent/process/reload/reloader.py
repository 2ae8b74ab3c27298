"""Reloads the configuration file. A file with a mistake is rejected as a whole: the agent goes on as it is.
What changed is applied while the rest runs; only for what cannot be applied does the agent restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from agent.base.listen_sockets import LISTEN_SOCKETS, tcp
from agent.base.sd_notify import Notifier
from agent.config import Config, ConfigError, listen_address
from agent.leaf.commands.handlers import Reply
from agent.leaf.commands.overrides import CommandError
from agent.leaf.intake import CheckedInput, Input
from agent.process.reload.change import ConfigChange, Parts, change, parts

_FIXED: Final = ("domain", "role", "state_dir")
"""What a running agent cannot change: its state file would not be that of the new one."""

KEPT_SECONDS: Final = 30.0
"""How long a socket is kept for an input that does not come; clients wait at it for as long."""

log = structlog.get_logger("reload")


class ReloadError(Exception):
    """The file can't be taken; the agent goes on as it is."""


class Files(Protocol):
    """Where configurations come from."""

    def read(self) -> Config:
        """The configuration as the file says now. Raises `ConfigError`."""

    def make(self, config: Config, names: Sequence[str]) -> Sequence[CheckedInput]:
        """The inputs with these names."""

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        """What prevents these inputs on this machine, and the agent if it restarts."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A configuration that is to hold from now on, what changed with it, and the inputs that begin."""

    config: Config
    change: ConfigChange
    inputs: Sequence[Input]


class Reloader:
    """Compares the file with the configuration that runs, and applies what changed or restarts the agent."""

    def __init__(self, running: Config, files: Files) -> None:
        self._files = files
        self._running, self._parts = running, parts(running)
        self._wanted: asyncio.Queue[tuple[Applied, Parts] | None] = asyncio.Queue()

    def plan(self) -> tuple[Applied, Parts]:
        """What the file as it is now would change. Blocks. Raises `ReloadError` with every problem."""
        try:
            return self._plan()
        except ReloadError:
            raise
        except Exception as error:  # a file that cannot be judged cannot be taken either
            why = f"{type(error).__name__}: {error}"
            raise ReloadError(f"it cannot be checked ({why}); change what is new in it") from error

    def _plan(self) -> tuple[Applied, Parts]:
        try:
            config = self._files.read()
        except ConfigError as error:
            raise ReloadError("; ".join(error.problems)) from None
        found = [
            f"{name}: {getattr(config, name)} cannot take the place of {getattr(self._running, name)} while "
            "the agent runs; change it back, or stop the agent first"
            for name in _FIXED
            if getattr(config, name) != getattr(self._running, name)
        ]
        new = parts(config)
        todo = change(self._parts, new, _served(self._running) | _served(config))
        inputs = self._files.make(config, todo.begin)
        with LISTEN_SOCKETS.leaving(_listened(self._running, None if todo.restart else todo.end)):
            found += self._files.problems(config, inputs, restart=bool(todo.restart))
        if found:
            raise ReloadError("; ".join(found))
        return Applied(config, todo, inputs), new

    def take(self, planned: tuple[Applied, Parts]) -> None:
        """Bring a plan in soon."""
        self._wanted.put_nowait(planned)

    def wanted(self) -> None:
        """Look at the file soon, and bring in what it says."""
        self._wanted.put_nowait(None)

    async def run(
        self,
        apply: Callable[[Applied], Awaitable[None]],
        again: Callable[[], None],
        supervisor: Notifier | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Bring in what is wanted, one after the other, until cancelled. An agent that is `ending` takes
        nothing in: it would begin to listen again, and start again instead of ending."""
        while True:
            planned = await self._wanted.get()
            if ending():
                log.info("reload ignored", reason="the agent ends")
                continue
            if supervisor is not None:
                supervisor.reloading()
            if await self._bring_in(planned, apply, ending):
                again()  # and the new agent is the one that says when it is ready
                return
            if supervisor is not None:
                supervisor.ready()

    async def _bring_in(
        self,
        planned: tuple[Applied, Parts] | None,
        apply: Callable[[Applied], Awaitable[None]],
        ending: Callable[[], bool],
    ) -> bool:
        """Bring a plan in, or what the file says where there is none; whether the agent has to start again
        for it."""
        if planned is None:
            try:
                planned = await asyncio.to_thread(self.plan)
            except ReloadError as error:
                log.error(
                    "configuration rejected; the agent goes on with the old one",
                    reason=str(error),
                    exc_info=error.__cause__,
                )
                return False
        if ending():
            log.info("reload ignored", reason="the agent ends")
            return False
        applied, new = planned
        log.info("configuration reloaded", what=str(applied.change))
        if not applied.change:
            return False
        if applied.change.restart:
            LISTEN_SOCKETS.keep(_listened(applied.config))
            return True
        LISTEN_SOCKETS.keep(_listened(applied.config, applied.change.begin))
        asyncio.get_running_loop().call_later(KEPT_SECONDS, LISTEN_SOCKETS.close)
        try:
            await apply(applied)
        except Exception as error:  # a part of it may hold already, and which part is unknown
            log.error("reload failed halfway; restarting the agent", exc_info=error)
            return True
        self._running, self._parts = applied.config, new
        return False


def _served(config: Config) -> frozenset[str]:
    """The inputs that the local server's configuration speaks of."""
    return frozenset(input_.name for input_ in config.input if input_.subscribe_subjects)


def _listened(config: Config, names: Collection[str] | None = None) -> set[str]:
    """Where the agent listens with this configuration: all of it, or inputs with these names."""
    texts = [input_.listens for input_ in config.input if names is None or input_.name in names]
    texts += [config.admin.listen] if names is None else []
    return {text if "://" in text else tcp(*listen_address(text)) for text in texts if text is not None}


def by_command(reloader: Reloader) -> Callable[[], Reply]:
    """A reload as a command asks for it: it is planned, which blocks, and carried out once the answer is
    stored. The returned function raises `CommandError` with what is wrong in the file."""

    def reload() -> Reply:
        try:
            planned = reloader.plan()
        except ReloadError as error:
            raise CommandError(f"the agent goes on as it is; correct its configuration: {error}") from None
        return Reply(f"the configuration is valid; {planned[0].change}", partial(reloader.take, planned))

    return reload
