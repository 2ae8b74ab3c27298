"""Reloads the configuration: rejects a wrong file whole, applies changes live, restarts only if needed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import fields

from agent.base.listen_sockets import LISTEN_SOCKETS, tcp
from agent.base.machine import Notifier
from agent.config import Config, ConfigError, Seconds, Size, listen_address
from agent.leaf.commands.handlers import Reply
from agent.leaf.commands.overrides import CommandError
from agent.leaf.intake import CheckedInput, Input

_MOST: Final = 1024 * 1024
"""Largest named file compared by content."""
_LIVE: Final = {"rule": "rules", "log": "logging", "leaf": "leaves", "user": "users"}
"""Tables applied live beside inputs (users at the hub only)."""

_INPUT: Final = "input."
Parts = Mapping[str, bytes]
"""Digests of top tables and `input.<name>`."""


class ConfigChange(Struct, frozen=True):
    """Inputs that `end` and `begin` (changed: both), live tables, and parts that need a restart."""

    end: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    live: frozenset[str] = frozenset()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != ConfigChange()

    def __str__(self) -> str:
        """Describe the change."""
        if self.restart:
            return f"the agent restarts, for {', '.join(self.restart)} changed"
        if not self:
            return "nothing in it has changed"
        both = set(self.end) & set(self.begin)
        said = [
            f"{verb} {', '.join(names)}"
            for verb, names in (
                ("input restarted:", sorted(both)),
                ("input ended:", sorted(set(self.end) - both)),
                ("input begun:", sorted(set(self.begin) - both)),
            )
            if names
        ]
        said += [f"{noun} taken in" for table, noun in _LIVE.items() if table in self.live]
        return "; ".join(said)


def parts(config: Config) -> Parts:
    """Return a configuration's parts, reading named files."""
    found = {
        table.encode_name: _digest(getattr(config, table.name))
        for table in fields(config)
        if table.name not in ("input", "map")  # inputs hold the mappings that they name
    }
    if config.nats.extra or config.nats.remote:
        from agent.config.server_overlay import named_files  # not held in memory where nothing is added

        added = [*named_files(config.nats.extra), *named_files(config.nats.remote)]
        found["nats"] = _digest([config.nats, added])
    return found | {f"{_INPUT}{options.name}": _digest(options) for options in config.input}


def change(
    before: Parts, after: Parts, reserved: frozenset[str] = frozenset(), *, hub: bool = False
) -> ConfigChange:
    """Return the change between parts, at a `hub` or leaf. `reserved` inputs need a restart."""
    live = _LIVE.keys() - (() if hub else {"user"})
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    inputs = {name for name in changed if name.startswith(_INPUT)}
    restart = (changed - inputs - live) | {name for name in inputs if name.removeprefix(_INPUT) in reserved}
    return ConfigChange(
        tuple(sorted(name.removeprefix(_INPUT) for name in inputs & before.keys())),
        tuple(sorted(name.removeprefix(_INPUT) for name in inputs & after.keys())),
        frozenset(changed & live),
        tuple(sorted(restart)),
    )


def _digest(part: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(part, enc_hook=_plain, order="deterministic")).digest()


def _plain(value: object) -> object:
    """Return a comparable form; for paths with content."""
    if isinstance(value, Seconds):
        return float(value)
    if isinstance(value, Size):
        return int(value)
    if not isinstance(value, Path):
        raise NotImplementedError(f"{type(value).__name__} in a configuration")
    try:
        if value.is_file() and value.stat().st_size <= _MOST:
            return [str(value), hashlib.blake2b(value.read_bytes()).hexdigest()]
    except OSError:
        pass  # who uses the file says what is wrong with it
    return str(value)


_FIXED: Final = ("domain", "role", "state_dir")
"""Parts that no reload may change, since the state file depends on them."""

KEPT_SECONDS: Final = 30.0
"""Time that a socket stays for an absent input."""

log = structlog.get_logger("reload")


class ReloadError(Exception):
    """The file is refused; the agent continues unchanged."""


class Files(Protocol):
    """The source of configurations."""

    def read(self) -> Config:
        """Read the configuration. Raises `ConfigError`."""

    def make(self, config: Config, names: Sequence[str]) -> Sequence[CheckedInput]:
        """Make named inputs."""

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        """Return obstacles of inputs, and of the agent for a restart."""


class Applied(Struct, frozen=True):
    """A planned configuration with its change and parts."""

    config: Config
    change: ConfigChange
    inputs: Sequence[Input]
    before: Parts
    after: Parts


class Reloader:
    """Compares the file with the running configuration, and applies or restarts."""

    def __init__(self, running: Config, files: Files) -> None:
        self._files = files
        self._running, self._parts = running, parts(running)
        self._wanted: asyncio.Queue[Applied | None] = asyncio.Queue()

    def plan(self) -> Applied:
        """Return the file's change. Blocks. Raises `ReloadError` with every problem."""
        try:
            return self._plan()
        except ReloadError:
            raise
        except Exception as error:  # a file that cannot be judged cannot be taken either
            why = f"it cannot be checked ({type(error).__name__}: {error}); change what is new in it"
            raise ReloadError(why) from error

    def _plan(self) -> Applied:
        before = self._parts
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
        reserved = _served(self._running) | _served(config)
        todo = change(before, new, reserved, hub=config.role == "hub")
        inputs = self._files.make(config, todo.begin)
        _listened(config)  # an address that cannot be read is found before anything is changed
        with LISTEN_SOCKETS.leaving(_listened(self._running, None if todo.restart else todo.end)):
            found += self._files.problems(config, inputs, restart=bool(todo.restart))
        if found:
            raise ReloadError("; ".join(found))
        return Applied(config, todo, inputs, before, new)

    def wanted(self, planned: Applied | None = None) -> None:
        """Request a reload, or a plan's."""
        self._wanted.put_nowait(planned)

    async def run(
        self,
        apply: Callable[[Applied], Awaitable[None]],
        again: Callable[[], None],
        supervisor: Notifier | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Apply requests in turn until cancelled; an `ending` agent applies none."""
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
        planned: Applied | None,
        apply: Callable[[Applied], Awaitable[None]],
        ending: Callable[[], bool],
    ) -> bool:
        """Apply a plan or the file; returns whether a restart is needed."""
        if planned is not None and planned.before is not self._parts:
            # Its inputs may run already: begun once more, they would store everything twice.
            planned = None
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
        log.info("configuration reloaded", what=str(planned.change))
        if not planned.change:
            return False
        if planned.change.restart:
            LISTEN_SOCKETS.keep(_listened(planned.config))
            return True
        LISTEN_SOCKETS.keep(_listened(planned.config, planned.change.begin))
        asyncio.get_running_loop().call_later(KEPT_SECONDS, LISTEN_SOCKETS.close)
        try:
            await apply(planned)
        except Exception as error:  # a part of it may hold already, and which part is unknown
            log.error("reload failed halfway; restarting the agent", exc_info=error)
            return True
        self._running, self._parts = planned.config, planned.after
        return False


def _served(config: Config) -> frozenset[str]:
    """Return inputs that the server's configuration names."""
    return frozenset(input_.name for input_ in config.input if input_.subscribe_subjects)


def _listened(config: Config, names: Collection[str] | None = None) -> set[str]:
    """Return listen addresses of all or these inputs."""
    texts = [input_.listens for input_ in config.input if names is None or input_.name in names]
    texts += [config.admin.listen] if names is None else []
    return {text if "://" in text else tcp(*listen_address(text)) for text in texts if text is not None}


def by_command(reloader: Reloader) -> Callable[[], Reply]:
    """Return a reload for commands: planned now (blocks), applied after the answer. It
    raises `CommandError`.
    """

    def reload() -> Reply:
        try:
            planned = reloader.plan()
        except ReloadError as error:
            raise CommandError(f"the agent goes on as it is; correct its configuration: {error}") from None
        return Reply(f"the configuration is valid; {planned.change}", partial(reloader.wanted, planned))

    return reload
