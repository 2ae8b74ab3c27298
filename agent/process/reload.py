"""Reloads the configuration file. A file with a mistake is rejected as a whole: the agent goes on as it is.
What changed is applied while the rest runs; only for what cannot be applied does the agent restart."""

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
"""Bytes up to which a file that is named is compared by its content; a larger one is no secret of ours."""
_LIVE: Final = {"rule": "rules", "log": "logging", "leaf": "leaves", "user": "users"}
"""The tables that a running agent applies in addition to its inputs, users at the hub only; for anything else
it restarts."""

_INPUT: Final = "input."
Parts = Mapping[str, bytes]
"""A digest for each part: the tables at the top, and `input.<name>` for each input."""


class ConfigChange(Struct, frozen=True):
    """What has to happen: inputs that `end`, and those that `begin`, a changed one both; the tables that are
    taken in while the agent runs; and the parts for which it has to start again, which does all of it."""

    end: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    live: frozenset[str] = frozenset()
    restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != ConfigChange()

    def __str__(self) -> str:
        """What happens, in words."""
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
    """The parts of a configuration. Reads the files that it names."""
    found = {
        table.encode_name: _digest(getattr(config, table.name))
        for table in fields(config)
        if table.name != "input"
    }
    if config.nats.extra or config.nats.remote:
        from agent.config.server_overlay import named_files  # not held in memory where nothing is added

        added = [*named_files(config.nats.extra), *named_files(config.nats.remote)]
        found["nats"] = _digest([config.nats, added])
    return found | {f"{_INPUT}{options.name}": _digest(options) for options in config.input}


def change(
    before: Parts, after: Parts, reserved: frozenset[str] = frozenset(), *, hub: bool = False
) -> ConfigChange:
    """What is to be done to come from one to the other, at a `hub` or a leaf. For inputs with `reserved`
    names the agent starts again, as for the tables that it can't take in while it runs."""
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
    """The representation of a value of a type of ours; for a path what is in the file too."""
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


class Applied(Struct, frozen=True):
    """A configuration that is to hold from now on, what changes with it, the inputs that begin, and the parts
    `before` and `after` it."""

    config: Config
    change: ConfigChange
    inputs: Sequence[Input]
    before: Parts
    after: Parts


class Reloader:
    """Compares the file with the configuration that runs, and applies what changed or restarts the agent."""

    def __init__(self, running: Config, files: Files) -> None:
        self._files = files
        self._running, self._parts = running, parts(running)
        self._wanted: asyncio.Queue[Applied | None] = asyncio.Queue()

    def plan(self) -> Applied:
        """What the file as it is now would change. Blocks. Raises `ReloadError` with every problem."""
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
        """Bring in soon what the file says, or a plan, unless another reload comes first."""
        self._wanted.put_nowait(planned)

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
        planned: Applied | None,
        apply: Callable[[Applied], Awaitable[None]],
        ending: Callable[[], bool],
    ) -> bool:
        """Bring a plan in, or what the file says where there is none; whether the agent has to start again
        for it."""
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
        return Reply(f"the configuration is valid; {planned.change}", partial(reloader.wanted, planned))

    return reload
